"""Everything that can be reproduced, by name."""

from __future__ import annotations

from metis_papers import (
    beliefs,
    check,
    cost,
    fig2,
    fig3,
    fig4,
    fig9,
    figures5to8,
    sstc,
    table1,
    table1_by_class,
    table2,
    table3,
    update_frequency,
    validation_size,
    wrong_labels,
)
from metis_papers.study import Study

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        table1.STUDY,
        table2.STUDY,
        table3.STUDY,
        fig2.STUDY,
        fig3.STUDY,
        fig4.STUDY,
        *figures5to8.STUDIES,
        fig9.STUDY,
        cost.STUDY,
        sstc.STUDY,
        validation_size.STUDY,
        update_frequency.STUDY,
        wrong_labels.STUDY,
        beliefs.STUDY,
        table1_by_class.STUDY,
        check.STUDY,
    )
}
