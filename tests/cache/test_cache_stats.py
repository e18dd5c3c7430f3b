"""Counters: they add up, subtract, and are never reset by reading."""

import dataclasses
import threading

import pytest
import torch
from fresh_processes import HANGING

from pagraph.accelerator import Event
from pagraph.features.store import Hits
from pagraph.stats import CacheStats, EpochStats, FieldStats, LoaderStats, ReadCounters
from pagraph.stats.reads import CountedRead, PendingRead


def record(counters, key="feat", tier="host", asked=10, hits=4, row_bytes=8, cacheable=True):
    counters.record_each([CountedRead(key, tier, asked, (hits,), row_bytes, cacheable)])


def test_nothing_was_asked():
    stats = ReadCounters().snapshot()
    assert stats.fields == {} and stats.hit_rate == 0.0 and stats.total == FieldStats()
    assert FieldStats().hit_rate == 0.0 and FieldStats().asked == 0


def test_a_read_is_counted_by_tier():
    counters = ReadCounters()
    record(counters)
    record(counters, tier="disk", asked=5, hits=0)
    feat = counters.snapshot().fields["feat"]
    assert feat.rows == {"host": 6, "cache": 4, "disk": 5}
    assert feat.nbytes == {"host": 48, "cache": 32, "disk": 40}
    assert (feat.asked, feat.hits, feat.misses, feat.hit_rate) == (15, 4, 11, 4 / 15)


def test_hit_rates_of_bytes_count_all_fields():
    counters = ReadCounters()
    record(counters, key="label", asked=100, hits=99)
    record(counters, asked=10, hits=0, row_bytes=792, cacheable=False)
    stats = counters.snapshot()
    assert (stats.hit_rate, stats.byte_hit_rate) == (0.99, 99 * 8 / (100 * 8 + 10 * 792))
    assert stats.fields["label"].byte_hit_rate == 0.99 and FieldStats().byte_hit_rate == 0.0


def test_reading_never_resets_and_snapshots_do_not_change():
    counters = ReadCounters()
    record(counters)
    first = counters.snapshot()
    assert counters.snapshot() == first
    record(counters)
    assert first.fields["feat"].asked == 10 and counters.snapshot().fields["feat"].asked == 20
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.fields = {}


def test_the_difference_is_what_happened_between():
    counters = ReadCounters()
    record(counters)
    before = counters.snapshot()
    record(counters, asked=6, hits=6)
    record(counters, key="label", asked=3, hits=0, row_bytes=1)
    epoch = counters.snapshot() - before
    assert (epoch.fields["feat"].asked, epoch.fields["feat"].hit_rate) == (6, 1.0)
    assert epoch.fields["feat"].rows == {"host": 0, "cache": 6}
    assert epoch.fields["label"].rows == {"host": 3}
    assert epoch.hit_rate == 6 / 9
    nothing = counters.snapshot() - counters.snapshot()
    assert nothing.hit_rate == 0.0 and nothing.total.asked == 0


def test_the_hit_rate_is_over_fields_that_a_cache_may_serve():
    counters = ReadCounters()
    record(counters, asked=10, hits=10)
    record(counters, key="label", asked=1000, hits=0, cacheable=False)
    stats = counters.snapshot()
    assert stats.hit_rate == 1.0
    assert (stats.total.asked, stats.total.hits) == (1010, 10)


def test_stats_of_several_loaders_parts_add_up():
    left = FieldStats({"host": 3}, {"host": 12})
    right = FieldStats({"host": 1, "cache": 2}, {"host": 4, "cache": 8}, cacheable=True)
    assert left + right == FieldStats(
        {"host": 4, "cache": 2}, {"host": 16, "cache": 8}, cacheable=True
    )
    assert CacheStats({"a": left, "b": right}).total.asked == 6


def test_threads_lose_no_count():
    counters = ReadCounters()

    def work():
        for _ in range(500):
            record(counters, asked=3, hits=1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counters.snapshot().fields["feat"].rows == {"host": 4000, "cache": 2000}


def test_hops_are_counted_by_their_number():
    counters = ReadCounters()
    record(counters, asked=10, hits=4)
    counters.record_each([CountedRead("feat", "host", 6, (1, 3), 8, True, bounds=[2, 6])])
    before = counters.snapshot()
    assert before.fields["feat"].hit_rate_by_hop == (0.5, 0.75)
    counters.record_each([CountedRead("feat", "host", 7, (0, 2, 0), 8, True, bounds=[0, 4, 7])])
    after = counters.snapshot()
    feat = after.fields["feat"]
    assert (feat.asked, feat.asked_by_hop, feat.hits_by_hop) == (23, (2, 8, 3), (1, 5, 0))
    assert feat.hit_rate_by_hop == (0.5, 0.625, 0.0)
    since = (after - before).fields["feat"]
    assert (since.asked_by_hop, since.hits_by_hop) == ((0, 4, 3), (0, 2, 0))
    assert since.hit_rate_by_hop == (0.0, 0.5, 0.0)
    assert before.fields["feat"].asked_by_hop == (2, 4)


def test_rates_by_field_and_hop_are_of_the_fields_that_a_cache_may_serve():
    a = FieldStats({"host": 2, "cache": 2}, cacheable=True, asked_by_hop=(1, 3), hits_by_hop=(1, 1))
    b = FieldStats({"host": 1, "cache": 1}, cacheable=True, asked_by_hop=(2,), hits_by_hop=(1,))
    c = FieldStats({"host": 9}, asked_by_hop=(4, 4, 1), hits_by_hop=(0, 0, 0))
    stats = CacheStats({"a": a, "b": b, "c": c})
    assert stats.hit_rate_by_field == {"a": 0.5, "b": 0.5}
    assert stats.hit_rate_by_hop == (2 / 3, 1 / 3)
    assert stats.total.asked_by_hop == (7, 7, 1)
    assert CacheStats().hit_rate_by_hop == () and CacheStats().hit_rate_by_field == {}


def test_numbers_by_flat_names():
    counters = ReadCounters()
    counters.record_each([CountedRead("feat", "host", 10, (1, 3), 8, True, 0.5, bounds=(2, 10))])
    counters.record_each([CountedRead("<label>", "disk", 2, None, 8, False)])
    reads = counters.snapshot()
    assert reads.to_dict() == {
        "rows": 12,
        "hit_rate": 0.4,
        "byte_hit_rate": 32 / 96,
        "field/feat/rows": 10,
        "field/feat/hits": 4,
        "field/feat/seconds": 0.5,
        "field/feat/bytes/host": 48,
        "field/feat/bytes/cache": 32,
        "field/feat/hit_rate": 0.4,
        "field/feat/byte_hit_rate": 0.4,
        "field/feat/hit_rate/hop_0": 0.5,
        "field/feat/hit_rate/hop_1": 3 / 8,
        "field/<label>/rows": 2,
        "field/<label>/hits": 0,
        "field/<label>/seconds": 0.0,
        "field/<label>/bytes/disk": 16,
    }
    epoch = EpochStats(3, 5, {"waiting": 1.5}, {"edges": 7}, reads, {"reading": 0.25})
    numbers = epoch.to_dict()
    assert (numbers["epoch"], numbers["batches"], numbers["edges"]) == (3, 5, 7)
    assert (
        numbers["seconds/waiting"],
        numbers["seconds/sampling"],
        numbers["device_seconds/reading"],
    ) == (
        1.5,
        0,
        0.25,
    )
    assert reads.to_dict().items() <= numbers.items()
    for shown in (reads, epoch):  # what a notebook shows, and a terminal
        assert "<td>40.0%</td>" in shown._repr_html_() and "&lt;label&gt;" in shown._repr_html_()
        assert "<label>" in str(shown)


def test_a_loaders_numbers_are_those_of_all_epochs():
    counters = ReadCounters()
    stats = LoaderStats(counters.snapshot)
    for epoch in range(2):
        recorder = stats.begin(epoch)
        record(counters)
        recorder.delivered(edges=3)
        recorder.close()
    numbers = stats.to_dict()
    assert (
        numbers["epochs"],
        numbers["batches"],
        numbers["edges"],
        numbers["field/feat/rows"],
    ) == (2, 2, 6, 20)
    assert "epoch" not in numbers and all(
        isinstance(value, int | float) for value in numbers.values()
    )
    assert stats._repr_html_().count("<table>") == 3 and "<td>total</td>" in stats._repr_html_()


class Moment(Event):
    """An event that happens when it is let."""

    def __init__(self, seconds=0.0, happened=False):
        self.seconds, self.happened = seconds, threading.Event()
        if happened:
            self.happened.set()

    @property
    def has_happened(self):
        return self.happened.is_set()

    def wait(self):
        assert self.happened.wait(HANGING)

    def seconds_since(self, earlier):
        assert self.has_happened and earlier.has_happened
        return self.seconds - earlier.seconds


def pending(hits=(1, 2), bounds=(4, 10), ready=None, key="feat"):
    """A read of ten rows that took 0.5 s once ``ready`` has happened."""
    ready = ready or Moment(1.5)
    counted = Hits(torch.tensor(hits), ready)
    return PendingRead(key, "host", 10, counted, 8, True, Moment(1.0, happened=True), ready, bounds)


def test_a_pending_read_is_counted_when_it_is_done():
    counters, read = ReadCounters(), pending()
    counters.record_pending([read], 9.0)
    assert counters.snapshot().fields == {}
    read.ready.happened.set()
    feat = counters.snapshot().fields["feat"]
    assert feat == FieldStats(
        {"host": 7, "cache": 3}, {"host": 56, "cache": 24}, True, 0.5, (4, 6), (1, 2)
    )
    assert counters.snapshot().fields["feat"] == feat


@pytest.mark.parametrize(("kernels", "seconds"), [(0.2, 0.3), (0.7, 0.0)])
def test_a_pending_read_has_no_loads_of_kernels(kernels, seconds):
    counters, read = ReadCounters(), dataclasses.replace(pending(), kernels=kernels)
    read.ready.happened.set()
    counters.record_pending([read], 9.0)
    assert counters.snapshot().fields["feat"].seconds == pytest.approx(seconds)


def test_pending_reads_add_to_those_that_are_known():
    counters = ReadCounters()
    record(counters)
    for hits in ((0,), (5,)):
        read = pending(hits, None)
        read.ready.happened.set()
        counters.record_pending([read], 0.0)
    feat = counters.snapshot().fields["feat"]
    assert (feat.asked, feat.hits, feat.asked_by_hop, feat.hits_by_hop) == (30, 9, (), ())


def test_settling_waits_for_all():
    counters = ReadCounters()
    reads = [pending(key=key) for key in "abc"]
    for read in reads:
        counters.record_pending([read], 0.0)
    timers = [threading.Timer(0.01 * i, read.ready.happened.set) for i, read in enumerate(reads)]
    for timer in timers:
        timer.start()
    counters.settle()
    assert {key: stats.hits for key, stats in counters.snapshot().fields.items()} == {
        "a": 3,
        "b": 3,
        "c": 3,
    }
    counters.settle()
    assert counters.snapshot().total.asked == 30


def test_what_is_known_is_not_kept():
    counters = ReadCounters()
    for _ in range(50):
        read = pending()
        read.ready.happened.set()
        counters.record_pending([read], 0.0)
        assert len(counters._pending) == 0
    assert counters.snapshot().fields["feat"].asked == 500


def test_who_watches_is_told_of_pending_reads_later():
    counters, seen, told = ReadCounters(), [], []

    class Watching:
        tracer = True

        def read(self, *what):
            seen.append(what)
            return told.append if what[3] is None else None

    counters.observer = Watching()
    read = pending()
    counters.record_pending([read], 0.25)
    assert seen == [("feat", "host", 10, None, 8, True, 0.25)] and told == []
    read.ready.happened.set()
    assert counters.snapshot().total.hits == 3 and told == [3]
    record(counters)
    assert seen[-1] == ("feat", "host", 10, 4, 8, True, 0.0) and told == [3]


def test_counts_may_be_asked_for_in_the_middle_of_counting():
    """As the garbage collector does when it ends an epoch."""
    counters = ReadCounters()

    class Interrupted(Moment):
        @property
        def has_happened(self):
            counters.snapshot()
            counters.settle()
            return True

    for _ in range(3):
        read = pending(ready=Interrupted(1.5, happened=True))
        counters.record_pending([read], 0.0)
    assert counters.snapshot().fields["feat"].asked == 30


def test_threads_count_every_pending_read_once():
    counters = ReadCounters()
    started = threading.Barrier(4)

    def work():
        started.wait()
        for i in range(200):
            read = pending()
            counters.record_pending([read], 0.0)
            read.ready.happened.set()
            if i % 7 == 0:
                counters.snapshot()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counters.settle()
    assert counters.snapshot().fields["feat"].asked == 8000 and len(counters._pending) == 0
