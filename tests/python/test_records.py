"""Record format: validation, merging of rounds, comparison and plots."""

from __future__ import annotations

import json

import pytest

from isthmus import records
from isthmus.cli.bench import reasons_of, table_of
from isthmus.cli.plot import draw, path_name
from isthmus.records import Record, Report


def record(median: float, *, provider: str = "isthmus", size: int = 1024, **fields) -> Record:
    busbw = 1.5 * size / median / 1e3
    return Record.model_validate(
        {
            "collective": "allreduce",
            "dtype": "float32",
            "op": "sum",
            "bytes": size,
            "ranks": 4,
            "provider": provider,
            "time_us": {"min": median / 2, "median": median, "max": median * 2},
            "algbw_gbs": size / median / 1e3,
            "busbw_gbs": busbw,
            "wrong": 0,
        }
        | fields
    )


def document() -> dict:
    report = records.report_from(
        [record(2.0), record(3.0, provider="mpich")],
        command="isthmus bench",
        commit="abc",
        machine={"name": "cpu4", "cpu": "some", "cores": 4},
        versions={"isthmus": "0.1.0"},
    )
    return json.loads(report.to_json())


def test_report_round_trips_through_file(tmp_path) -> None:
    report = Report.model_validate(document())
    report.save(tmp_path / "deep" / "report.json")
    assert Report.load(tmp_path / "deep" / "report.json") == report
    assert document()["schema"] == 1
    assert document()["date"].endswith("Z")


@pytest.mark.parametrize(
    ("path", "value", "location"),
    [
        (("schema",), 2, "schema"),
        (("machine", "cores"), 0, "machine.cores"),
        (("records", 0, "bytes"), -1, "records.0.bytes"),
        (("records", 1, "provider"), "", "records.1.provider"),
        (("records", 0, "time_us", "median"), 99.0, "records.0.time_us"),
        (("records", 0, "wrong"), -1, "records.0.wrong"),
        (("date",), "yesterday", "date"),
    ],
)
def test_invalid_field_is_named_in_error(tmp_path, path, value, location) -> None:
    broken = document()
    target = broken
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    file = tmp_path / "report.json"
    file.write_text(json.dumps(broken))
    with pytest.raises(ValueError, match=f"report.json: {location}: "):
        Report.load(file)


def test_rounds_merge_to_the_median_of_medians() -> None:
    rounds = [[record(4.0), record(9.0, provider="mpich")], [record(2.0)], [record(3.0, wrong=5)]]
    own_records, peer = records.merge_rounds(rounds)
    assert own_records.time_us.median == 3.0
    assert (own_records.time_us.min, own_records.time_us.max) == (1.0, 8.0)
    assert own_records.algbw_gbs == pytest.approx(1024 / 3.0 / 1e3)
    assert own_records.busbw_gbs == pytest.approx(1.5 * 1024 / 3.0 / 1e3)
    assert own_records.wrong == 5
    assert own_records.round_medians_us == [4.0, 2.0, 3.0]
    assert peer.time_us.median == 9.0


def test_best_peer_is_per_point_and_excludes_isthmus() -> None:
    all_records = [record(1.0), record(5.0, provider="mpich"), record(4.0, provider="impi")]
    all_records += [record(1.0, size=8), record(2.0, provider="mpich", size=8)]
    best = records.best_peers(all_records)
    assert {point[3]: peer.provider for point, peer in best.items()} == {1024: "impi", 8: "mpich"}


def test_table_shows_speedup_and_reasons() -> None:
    own_records = [record(2.0, size=size, backend="shm:packet", reason="rule x") for size in (1024, 4096)]
    peers = [record(5.0, size=size, provider="mpich") for size in (1024, 4096)]
    table = table_of(own_records + peers)
    cells = [list(column.cells) for column in table.columns]
    assert cells[0] == ["1K", "4K"]
    assert [(cell.plain, cell.style) for cell in cells[4]] == 2 * [("2.50x", "green")]
    assert cells[-1] == ["shm:packet"] * 2
    assert reasons_of(own_records + peers) == ["shm:packet, 1K to 4K: rule x"]


def test_table_compares_shim_with_its_own_mpi() -> None:
    all_records = [
        record(5.0, provider="mpich"),
        record(1.0, provider="openmpi"),
        record(4.0, provider="mpich+shim"),
    ]
    table = table_of(all_records)
    assert "vs mpich" in str(table.columns[-2].header)
    assert [(cell.plain, cell.style) for cell in table.columns[-2].cells] == [("1.25x", "green")]


def test_plot_writes_png(tmp_path) -> None:
    all_records = [
        record(size / 100, size=size, provider=provider)
        for provider in ("isthmus", "mpich")
        for size in (8, 1024, 1 << 20)
    ]
    all_records += [record(3.0, mode="shared_heap")]
    draw(all_records, tmp_path / "picture.png", "title")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert path_name(all_records[-1]) == "isthmus heap"
