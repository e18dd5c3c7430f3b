import pytest

from pagraph.system.units import bytes_text, percent, short_count


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1023, "1023 B"), (1024, "1 KiB"), (9994, "9.76 KiB"), (999_400, "976 KiB"),
     (2**20, "1 MiB"), (3 << 29, "1.5 GiB"), (2**31, "2 GiB"), (5 << 40, "5 TiB"), (2**60, "1.049e+06 TiB")],
)  # fmt: skip
def test_bytes(nbytes, text):
    assert bytes_text(nbytes) == text


def test_shares():
    assert [percent(share) for share in (0, 0.1234, 1.0, None)] == ["0.0%", "12.3%", "100.0%", "-"]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1k"),
        (250_000, "250k"),
        (1_500_000, "1.5M"),
        (2e9, "2G"),
        (-2000, "-2k"),
    ],
)
def test_counts_of_an_axis(count, text):
    assert short_count(count) == text
