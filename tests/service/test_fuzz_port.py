"""Garbage on the port of a controller: 500 inputs here, 10,000 in the soak."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.service.fuzz_port import Findings, report, run

_MORE_MIB, _MORE_THREADS, _MORE_FILES = 64, 60, 120  # threads: a pool of 40, and gRPC's own
_LATER_MIB = 12  # between the 2,000th input and the last
REPORT = Path(__file__).parents[2] / "docs" / "results" / "soak-strangers.md"


def assert_unmoved(findings: Findings) -> None:
    first, last = findings.samples[0], findings.samples[-1]
    assert findings.broken == ""
    assert findings.unanswered == 0
    assert findings.tracebacks == 0
    assert max(s.rss_mib for s in findings.samples) < first.rss_mib + _MORE_MIB
    assert max(s.num_threads for s in findings.samples) < first.num_threads + _MORE_THREADS
    assert max(s.num_files for s in findings.samples) < first.num_files + _MORE_FILES
    assert last.num_files <= first.num_files + 4
    assert sorted(set(findings.unforeseen)) == []


def test_garbage_on_the_port_is_refused_and_a_good_learner_goes_on(tmp_path: Path) -> None:
    findings = run(tmp_path, 500, seed=1)

    assert_unmoved(findings)
    assert findings.num_inputs == 500


@pytest.mark.soak
def test_garbage_by_the_ten_thousand_moves_nothing(tmp_path: Path) -> None:
    findings = run(tmp_path, 10_000, seed=2)

    REPORT.write_text(report(findings))
    assert_unmoved(findings)
    warm = next(s for s in findings.samples if s.num_inputs >= 2000)
    assert findings.samples[-1].rss_mib < warm.rss_mib + _LATER_MIB
    assert findings.num_inputs == 10_000
