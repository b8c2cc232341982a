"""Fail if a test was skipped for anything but the lack of CUDA: `skipped.py tests.xml`."""

import sys
from xml.etree import ElementTree

skipped = [
    f"{case.get('classname')}::{case.get('name')}: {mark.get('message')}"
    for case in ElementTree.parse(sys.argv[1]).iter("testcase")
    for mark in case.iter("skipped")
    if mark.get("type") != "pytest.xfail" and "CUDA" not in (mark.get("message") or "")
]
if skipped:
    sys.exit("skipped, though nothing but CUDA may be lacking here:\n" + "\n".join(skipped))
