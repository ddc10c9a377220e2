import re
import unittest
from pathlib import Path
from unittest import mock

import oncegate
from test_worker import Manager


class ReadmeTest(unittest.TestCase):
    def test_its_code_runs(self):
        m = Manager()
        self.addCleanup(m.server_close)
        self.addCleanup(m.shutdown)
        text = (Path(__file__).parent.parent / "README.md").read_text()
        blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        self.assertEqual(len(blocks), 2)
        with mock.patch.object(oncegate.Worker, "run") as run, mock.patch("builtins.print") as printed:
            for block in blocks:
                exec(compile(block.replace("http://127.0.0.1:8090", m.url), "README.md", "exec"), {})
        run.assert_called_once_with()
        printed.assert_called_once_with("a", "queued", False)

    def test_all_names_are_there(self):
        for name in oncegate.__all__:
            self.assertTrue(getattr(oncegate, name).__doc__ or name in ("Handler", "AsyncHandler"), name)
