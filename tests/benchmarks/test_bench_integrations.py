"""The benchmark of heads inside other libraries, as small as it can be."""

import json

from benchmarks import integrations


def test_it_measures_what_is_installed_and_names_the_rest(tmp_path, monkeypatch):
    monkeypatch.setattr(integrations, "peak_of", lambda *_: 10**6)  # which takes seconds
    said = []
    rows = integrations.run(4, 8, (20,), rounds=1, threads=1, out=tmp_path, say=said.append)
    assert any(row.package.startswith("pytorch-metric-learning") for row in rows)
    assert all(row.error is None if row.package.startswith("torch ") else row.error < 1e-5 for row in rows)
    assert len(said) == len(integrations.PAIRS)
    stored = json.loads((tmp_path / f"{integrations.STEM}.json").read_text())
    assert [pair["name"] for pair in stored["pairs"]] == [row.name for row in rows]
    assert rows[0].package in (tmp_path / f"{integrations.STEM}.md").read_text()
