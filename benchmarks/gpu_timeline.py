"""Five steps on a time axis, with and without overlap: what the loader's threads did, and what the
device did."""

import gzip
import json

import torch

STEPS = 5
_ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})


def timeline(work, prefetch, path):
    """Seconds of five steps; the loader's trace goes to ``path``, torch's profile beside it where
    there is a GPU."""
    loader = work.loader(prefetch=prefetch, seeds=work.seeds[: STEPS * work.sizes.batch_size])
    try:
        for _ in range(2):
            work.warm_up(loader)
        figures = {"prefetch": prefetch, "seconds": work.train(loader)}
        with loader.trace(path):
            figures["seconds_traced"] = work.train(loader)
        if work.accelerator.device.type == "cuda":
            profile = path.with_name(path.name.replace(".json", "-streams.json"))
            figures |= streams(_profiled(lambda: work.train(loader), profile))
    finally:
        loader.close()
    return figures


def _profiled(run, path):
    """The profile of ``run()``, which is written to ``path``."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        run()
    profiler.export_chrome_trace(str(path))
    with gzip.open(path, "rt") as file:
        return json.load(file)


def streams(profile):
    """Seconds in which the device was at work, in which several streams were at once, and of each
    stream."""
    spans = {}
    for event in profile["traceEvents"]:
        if event.get("cat") in _ON_DEVICE:
            begin = float(event["ts"])
            spans.setdefault(event["args"]["stream"], []).append(
                (begin, begin + float(event["dur"]))
            )
    joined = {stream: _joined(of_stream) for stream, of_stream in spans.items()}
    edges = sorted(
        (at, step)
        for parts in joined.values()
        for span in parts
        for at, step in zip(span, (1, -1), strict=True)
    )
    busy = together = 0.0
    depth, before = 0, 0.0
    for at, step in edges:
        busy += (at - before) * (depth > 0)
        together += (at - before) * (depth > 1)
        depth, before = depth + step, at
    return {
        "device_busy": busy * 1e-6,
        "several_streams_at_once": together * 1e-6,
        "by_stream": {
            str(s): sum(end - begin for begin, end in parts) * 1e-6 for s, parts in joined.items()
        },
    }


def _joined(spans):
    """Spans that do not overlap, in order."""
    joined = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1][1] = max(end, joined[-1][1])
        else:
            joined.append([begin, end])
    return joined
