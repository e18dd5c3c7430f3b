"""``pagraph partition --compare``: several methods in one table."""

import json
import re

from partition_runs import QUICK, first_ones, run

from pagraph import MissingDependencyError
from pagraph.partition import METHODS


class TestComparing:
    def test_one_table_and_no_parts(self, blocks, tmp_path, monkeypatch):
        monkeypatch.setitem(METHODS, "halo", first_ones)
        file, plot = tmp_path / "p.json", tmp_path / "p.svg"
        methods = ["--method", "hash", "--method", "halo"]
        trial = ["--cache", "20%", "--cache-policy", "degree"]
        result = run(
            blocks,
            "--compare",
            "-k",
            3,
            "--hops",
            1,
            *methods,
            *trial,
            "--json",
            file,
            "--plot",
            plot,
            columns=80,
        )
        assert result.exit_code == 0 and "parts save no memory here" in result.stderr
        reports = json.loads(file.read_text())["comparison"]
        assert [report["method"] for report in reports] == ["hash", "halo"]
        best = min(report["largest_share"] for report in reports)
        for report in reports:
            share = report["largest_share"]
            mark = r"\*" if share == best else " "
            found = rf"^ *{report['method']} +{share:.3f}{mark} +{report['largest_over_hash']:.3f} "
            found += rf"+{report['replication_factor']:.3f} +{report['train_balance']:.3f} "
            assert re.search(found, result.stdout, re.MULTILINE), result.stdout
            assert f"{report['cache']['hit_rate']:.1%}" in result.stdout
        # The whole graph is sampled once, for all methods.
        assert len({report["cache"]["unpartitioned_reads"] for report in reports}) == 1
        assert sorted(path.name for path in tmp_path.iterdir()) == ["p.json", "p.svg"]
        assert all(len(line) <= 80 for line in result.stdout.splitlines()[1:])

    def test_all_methods_that_can_run(self, blocks, tmp_path, monkeypatch):
        def missing(*_arguments, **_settings):
            raise MissingDependencyError("needs a package, which is not installed")

        monkeypatch.setattr("pagraph.cli.partition.METHOD_NAMES", ("halo", "metis"))
        monkeypatch.setitem(METHODS, "halo", first_ones)
        monkeypatch.setitem(METHODS, "metis", missing)
        result = run(blocks, "--compare", "-k", 2, "--cache", "0", "--json", tmp_path / "p.json")
        assert result.exit_code == 0
        assert "metis was left out: needs a package, which is not installed" in result.stdout
        report = json.loads((tmp_path / "p.json").read_text())
        assert [r["method"] for r in report["comparison"]] == ["halo"] and list(
            report["skipped"]
        ) == ["metis"]
        named = run(blocks, "--compare", "-k", 2, "--cache", "0", "--method", "metis")
        assert (named.exit_code, named.stdout) == (1, "")

    def test_without_caches_there_is_no_hit_rate(self, blocks):
        text = run(blocks, "--compare", "-k", 2, *QUICK).stdout
        assert "hash" in text and "hit rate" not in text
