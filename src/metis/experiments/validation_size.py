"""Beyond the paper: how DVW depends on the size of the validation set, stratified or not.

The paper holds out 5 %, stratified, and does not say what less would do. Everything but the
hold-out is AsyncDVW(na) of Table I; equal weights with the paper's hold-out stand beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

from metis.experiments import table1
from metis.experiments.cells import Cell, Setting, federated_cell
from metis.experiments.outcome import Outcome, read_outcomes
from metis.experiments.sensitivity import Sensitivity
from metis.experiments.study import Choice, Report, Study, chosen
from metis.experiments.words import costs_table, made_with, score, write_page

NAME = "validation-size"
PERCENTS = (1, 2, 5, 10)
KINDS = {"stratified": True, "random": False}
CLUSTER, POLICY, CONTROL = "heterogeneous", "async-dvw", "async-uniform"


def variant(percent: int, kind: str) -> str:
    return f"{POLICY}-{percent}percent-{kind}"


SENSITIVITY = Sensitivity(
    setting="held out of each learner's examples (%)",
    curves={kind: {percent: variant(percent, kind) for percent in PERCENTS} for kind in KINDS},
    usual=variant(5, "stratified"),
    usual_in_words="5 %, stratified",
    beside=CONTROL,
    beside_in_words="equal weights",
)


def name_of(choice: Choice) -> str:
    """Return the study's name; with other data it has one of its own."""
    return NAME + table1.grid_of(choice.data, NAME).suffix


def cells(setting: Setting, choice: Choice) -> list[Cell]:
    grid = table1.grid_of(choice.data, NAME)
    chosen(choice.clusters, (CLUSTER,), f"cluster of {NAME}")
    rows = chosen(choice.rows or ("powerlaw-3",), grid.rows, f"row of {NAME}")
    chosen(choice.policies, (POLICY, CONTROL), f"policy of {NAME}")
    plans: list[tuple[str, str, dict[str, object]]] = [
        (POLICY, variant(percent, kind), {"fraction": percent / 100, "stratified": stratified})
        for percent in (PERCENTS if setting.scale != "smoke" else PERCENTS[:1])
        for kind, stratified in KINDS.items()
    ]
    plans.append((CONTROL, "", {}))
    return [
        federated_cell(
            setting,
            name_of(choice),
            grid.domain,
            CLUSTER,
            row,
            policy,
            seed,
            grid.horizons[CLUSTER],
            variant=kind,
            validation=validation,
        )
        for row in rows
        for policy, kind, validation in plans
        if choice.policies is None or policy in choice.policies
        for seed in setting.seeds
    ]


def report(setting: Setting, choice: Choice) -> Report:
    name = name_of(choice)
    found = read_outcomes(setting.out / name)
    if not found:
        return write_page(setting.out, name, f"## {name}\n\nAll its cells are missing.\n")
    parts = ["## Sensitivity of DVW to the size of the validation set\n"]
    for row, horizon in dict.fromkeys((one.row, one.horizon) for one in found):
        here = [one for one in found if (one.row, one.horizon) == (row, horizon)]
        held_out = [
            ", ".join(_held_out(here, variant(percent, kind)) for kind in KINDS)
            for percent in PERCENTS
        ]
        parts += [
            f"{row}, AsyncDVW(na), {horizon}; means over the last tenth of the time:\n",
            SENSITIVITY.table(here, "held out (%)", {"examples held out": held_out}),
            f"Equal weights, 5 % held out: {score(SENSITIVITY.scores(here, ''))}.\n",
            SENSITIVITY.differences(here),
        ]
    seeds = {one.seed for one in found}
    if len(seeds) > 1:
        parts.append(f"Of {len(seeds)} seeds; bars and the band go from the least to the most.\n")
    picture = SENSITIVITY.draw(found, setting.out / f"{name}.png")
    parts += [f"![accuracy by share held out]({picture.name})\n"]
    parts += [costs_table(found), made_with(found)]
    return write_page(setting.out, name, "\n".join(parts), [picture])


def _held_out(found: Sequence[Outcome], name: str) -> str:
    for one in found:
        if one.variant == name:
            return f"{sum(each['validation_examples'] for each in one.learners):,}"
    return "-"


STUDY = Study(NAME, "sensitivity of DVW to the size of the validation set", cells, report)
