"""The examples of frameworks with one callback, without `pipe`: they do what they did before."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

FIXTURES = pathlib.Path(__file__).parents[2] / "tests/fixtures"


class Alone(unittest.TestCase):
    def run_alone(self, name, without_callback):
        with tempfile.TemporaryDirectory() as folder:
            text = (FIXTURES / name).read_text()
            if without_callback:
                lines = [line for line in text.splitlines() if "import pipe_train" not in line]
                text = "\n".join(lines).replace(", callbacks=[pipe_train.lightning.Callback()]", "").replace("callbacks=[pipe_train.transformers.Callback()],", "")
                self.assertNotIn("pipe_train", text)
            # Smaller than where memory is to run out.
            text = text.replace("WIDTH = 262144", "WIDTH = 64").replace("hidden_dim=16384", "hidden_dim=64")
            start = "import random, torch\nrandom.seed(1)\ntorch.manual_seed(1)\n"
            pathlib.Path(folder, "script.py").write_text(start + text)
            env = {name: value for name, value in os.environ.items() if not name.startswith("PIPE_")}
            env.update(PYTHONPATH=os.pathsep.join(sys.path), OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")
            ended = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, env=env, cwd=folder)
            self.assertEqual(ended.returncode, 0, ended.stderr)
            self.assertNotIn('{"step"', ended.stdout)
            made = sorted(str(path.relative_to(folder)) for path in pathlib.Path(folder).rglob("*") if path.is_file())
            return made, ended.stdout

    def test_transformers(self):
        made, said = self.run_alone("transformers_docs.py", without_callback=False)
        self.assertIn("my_awesome_model/checkpoint-12/model.safetensors", made)
        self.assertEqual(made, self.run_alone("transformers_docs.py", without_callback=True)[0])

    def test_lightning(self):
        made, _ = self.run_alone("lightning_docs.py", without_callback=False)
        self.assertTrue(any(name.endswith(".ckpt") for name in made), made)
        self.assertEqual(made, self.run_alone("lightning_docs.py", without_callback=True)[0])


if __name__ == "__main__":
    unittest.main()
