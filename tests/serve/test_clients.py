"""Clients that people have: Triton's, as the documentation uses it, and curl."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import apac

PAGE = Path(__file__).parents[2] / "docs/how-to/serve.md"


def test_the_documented_code_for_tritons_client_prints_the_decision(server):
    code = PAGE.read_text().partition("```text\n")[2].partition("```")[0]
    assert "tritonclient" in code
    code = code.replace("127.0.0.1:8000", server.address.removeprefix("http://"))
    # In its own process: the client brings an event loop that is not asyncio's.
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    run = apac.load("mnist-cnn")
    blank = run.normalize(torch.zeros(1, 1, 28, 28, dtype=torch.uint8))
    label = run.classifier(apac.FixedPasses(64)).decide(blank).labels[0]
    assert result.stdout.startswith(f"[{label} {label}] [[")


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")
def test_curl_uploads_a_file(server, seven, tmp_path):
    file = tmp_path / "seven.png"
    file.write_bytes(seven)
    command = ["curl", "--silent", "--noproxy", "*", "-F", f"image=@{file}", f"{server.address}/classify"]
    answer = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert (answer["class"], answer["stopped"]) == ("7", "certified")
