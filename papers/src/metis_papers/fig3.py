"""Figure 3: validation cycles of a fast and a slow learner, uniform IID.

The paper draws it with thresholds of its own: tombstones 4 and 1, losses 0 % and 1 %.
"""

from __future__ import annotations

from metis.report.style import group_colours, new_figure, plain, write_figure
from metis_papers import table1
from metis_papers.cells import Cell, Setting, federated_cell, rows
from metis_papers.formatting import costs_table, made_with, write_page
from metis_papers.results import read_results
from metis_papers.study import Choice, Report, Study

(ROW,) = rows("uniform-iid")
POLICY, CLUSTER = "async-dvw-adaptive", "heterogeneous"


def cells(setting: Setting, choice: Choice) -> list[Cell]:
    grid = table1.grid_of(choice.data, "fig3")
    choice.must_be((CLUSTER,), (ROW,), (POLICY,), "fig3")
    return [
        federated_cell(
            setting,
            f"fig3{grid.suffix}",
            grid.domain,
            CLUSTER,
            ROW,
            POLICY,
            seed,
            grid.horizons[CLUSTER],
            groups={"fast": {"vc_tomb": 4, "vc_loss": 0.0}, "slow": {"vc_tomb": 1, "vc_loss": 1.0}},
        )
        for seed in setting.seeds
    ]


def report(setting: Setting, choice: Choice) -> Report:
    name = f"fig3{table1.grid_of(choice.data, 'fig3').suffix}"
    found = [one for one in read_results(setting.out, [name]) if one.cycles]
    if not found:
        return write_page(setting.out, name, "## Figure 3\n\nIts cell is missing.\n")
    cycles = found[0].cycles
    colours = group_colours((*(each["group"] for each in found[0].learners), *cycles))
    figure = new_figure(5 * len(cycles), 3.6)
    panels = figure.subplots(1, len(cycles), squeeze=False).ravel()
    for axes, (group, one) in zip(panels, cycles.items(), strict=True):
        losses, offers = one["losses"], one["offers"]
        axes.plot(range(1, len(losses) + 1), losses, color=colours[group], lw=1.2)
        axes.vlines(offers, 0, 1, transform=axes.get_xaxis_transform(), color="#bbbbbb", lw=0.8)
        marks = [losses[epoch - 1] for epoch in offers]
        axes.plot(offers, marks, "o", color="#555555", ms=4, label="offers its model")
        plain(axes, "local epochs", "validation loss")
        axes.set_title(f"{one['learner']} ({group})", loc="left", fontsize=10)
        axes.legend(fontsize=8, frameon=False)
    picture = write_figure(figure, setting.out / f"{name}.png")
    said = [
        f"- {one['learner']} ({group}): {len(one['offers'])} cycles in its first "
        f"{len(one['losses'])} epochs"
        for group, one in cycles.items()
    ]
    causes = [
        f"- all {group} learners: of {one['cycles']:,} cycles {one['by_loss']:,} ended since the "
        f"loss rose or hardly fell (C1 or C2), {one['by_cap']:,} after the most epochs a cycle may "
        "have, "
        f"{one['cycles'] - one['by_loss'] - one['by_cap']:,} for staleness alone (C3)"
        + (f"; in {one['rose']:,} the last epoch made the loss larger" if "rose" in one else "")
        for group, one in cycles.items()
        if one.get("cycles") and "by_loss" in one  # without burn-in there is no telling
    ]
    text = "\n".join(
        [
            "## Figure 3: validation cycles\n",
            *said,
            *causes,
            f"\n![figure 3]({name}.png)\n",
            costs_table(found),
            made_with(found),
        ]
    )
    return write_page(setting.out, name, text, [picture])


STUDY = Study("fig3", "validation cycles of a fast and a slow learner", cells, report)
