"""Readers who follow a request through the code open few files."""

from __future__ import annotations

from pathlib import Path

from scripts.trace_flow import trace

# As measured, with a little room for work in the background. Lower them when a flow gets shorter.
CEILINGS = {"recall": 57, "learn": 90, "forget": 28}


async def test_one_request_passes_through_few_files(int8_model_dir: Path, tmp_path: Path) -> None:
    flows = await trace(int8_model_dir.parent, tmp_path)
    assert {"extproc/processor.py", "recall/recaller.py"} <= set(flows["recall"].files)
    assert "learn/learner.py" in flows["learn"].files
    assert "erasure/forgetter.py" in flows["forget"].files
    longer = {name: len(flow.files) for name, flow in flows.items() if len(flow.files) > CEILINGS[name]}
    assert not longer, f"more files than {CEILINGS}"
