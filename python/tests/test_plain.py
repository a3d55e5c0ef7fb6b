"""What the package computes without torch."""

import contextlib
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import pipe_train
from pipe_train import checkpoint, order, randomness, report

FOLDER = pathlib.Path(pipe_train.__file__).parent


class Importing(unittest.TestCase):
    def test_torch_is_imported_when_it_is_used(self):
        code = "import sys; sys.modules['torch'] = None; import pipe_train; print(pipe_train.settings().batch, pipe_train.__version__)"
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=FOLDER.parent)
        self.assertEqual(found.stdout.split()[:1], ["8"], found.stderr)

    def test_there_is_nothing_else(self):
        with self.assertRaises(AttributeError):
            pipe_train.nothing
        self.assertTrue((FOLDER / "py.typed").is_file())


class Settings(unittest.TestCase):
    def test_without_pipe_those_of_the_script(self):
        found = pipe_train.settings(16, 64, 7, "out", environ={})
        self.assertEqual((found.batch, found.effective_batch, found.accum, found.seed), (16, 64, 4, 7))
        self.assertEqual((found.folder, found.resume, found.record, found.is_under_pipe), (pathlib.Path("out"), None, None, False))
        alone = pipe_train.settings(environ={})
        self.assertEqual((alone.batch, alone.effective_batch, alone.seed, alone.folder), (8, 8, 42, None))

    def test_under_pipe_those_of_pipe(self):
        given = dict(PIPE_BATCH="3", PIPE_EFFECTIVE_BATCH="8", PIPE_SEED="0", PIPE_RUN="/run", PIPE_RESUME="", PIPE_ATTEMPT="2",
                     PIPE_PRECISION="bf16", PIPE_OOM_RECORD="/job/oom.json")
        found = pipe_train.settings(16, 64, 7, "out", environ=given)
        self.assertEqual((found.batch, found.effective_batch, found.accum, found.seed, found.attempt), (3, 8, 3, 0, 2))
        self.assertEqual((found.folder, found.resume, found.precision), (pathlib.Path("/run"), None, "bf16"))
        self.assertTrue(found.is_under_pipe)
        self.assertEqual(pipe_train.settings(environ=dict(given, PIPE_BATCH="100")).batch, 8)

    def test_numbers_that_are_none(self):
        for given in (dict(PIPE_BATCH="0"), dict(PIPE_BATCH="x"), dict(PIPE_SEED="-1")):
            with self.assertRaisesRegex(ValueError, list(given)[0]):
                pipe_train.settings(environ=given)
        for batch in (0, -1, 1.5, True):
            with self.assertRaisesRegex(ValueError, "batch="):
                pipe_train.settings(batch, environ={})


class Randomness(unittest.TestCase):
    def test_blake3(self):
        # The vectors of BLAKE3 count up from 0.
        for length, want in ((0, "af1349b9f5f9a1a6"), (1, "2d3adedff11b61f1"), (63, "e9bc37a594daad83"), (64, "4eed7141ea4a5cd4")):
            self.assertEqual(randomness._blake3(bytes(range(length))).hex()[:16], want)
        with self.assertRaises(ValueError):
            randomness._blake3(bytes(65))

    def test_philox(self):
        pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
        ones = 0xFFFFFFFF
        for key, counter, want in (
            (0, (0,) * 4, (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48)),
            (ones << 32 | ones, (ones,) * 4, (0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662)),
            (0x299F31D0A4093822, pi, (0x4DFCCABA, 0x190A87F0, 0xC47362BA, 0xB6B5242A)),
        ):
            self.assertEqual(randomness.philox(key, counter), want)

    def test_an_order_is_one_of_all_rows(self):
        first = randomness.shuffled(100, 42, 0)
        self.assertEqual(sorted(first), list(range(100)))
        self.assertEqual(first, randomness.shuffled(100, 42, 0))
        for other in (randomness.shuffled(100, 42, 1), randomness.shuffled(100, 43, 0)):
            self.assertNotEqual(first, other)
        # It is the same in every version of Python.
        self.assertEqual(randomness.shuffled(10, 42, 0), [3, 5, 4, 2, 9, 7, 0, 8, 1, 6])


class Order(unittest.TestCase):
    def steps(self, batch, ranks, effective=12, start=0, rows=10, samples=50):
        """The samples of each step, in the order of ranks and parts, with the places that they are given."""
        taken = []
        while start < samples:
            plan = order.Plan(order.SampleOrder(rows, 1, shuffle=True), effective, samples)
            shares = [share for rank in range(ranks) for share in plan.parts(start, batch, rank, ranks)]
            self.assertTrue(all(0 < len(share.rows) <= batch for share in shares))
            places = [share.place + index for share in shares for index in range(len(share.rows))]
            self.assertEqual(places, list(range(plan.samples_of(start))))
            taken.append([row for share in shares for row in share.rows])
            start += plan.samples_of(start)
        return taken

    def test_no_cut_changes_the_samples_of_a_step(self):
        whole = self.steps(12, 1)
        self.assertEqual([len(step) for step in whole], [12, 12, 12, 12, 2])
        for batch in (1, 5, 7, 100):
            for ranks in (1, 2, 3, 20):
                self.assertEqual(self.steps(batch, ranks), whole, (batch, ranks))
        self.assertEqual(self.steps(5, 2, start=24), whole[2:])

    def test_every_epoch_has_every_row(self):
        taken = [row for step in self.steps(12, 1) for row in step]
        for epoch in range(5):
            self.assertEqual(sorted(taken[epoch * 10 : epoch * 10 + 10]), list(range(10)))
        unshuffled = order.SampleOrder(3, 1, shuffle=False)
        self.assertEqual(unshuffled.take(1, 5), [1, 2, 0, 1, 2])

    def test_parts_are_loaded_as_they_are_computed(self):
        plan = order.Plan(order.SampleOrder(10, 1, shuffle=True), 12, 50)
        loaded = list(plan.all_parts(24, 5, 1, 2))
        other = order.Plan(order.SampleOrder(10, 1, shuffle=True), 12, 50)
        self.assertEqual(loaded, [share.rows for start in (24, 36, 48) for share in other.parts(start, 5, 1, 2)])

    def test_samples_of_a_run(self):
        new = order.Done()
        self.assertEqual(order.samples_of_run(10, 4, None, 2.5, new), 25)
        self.assertEqual(order.samples_of_run(10, 4, None, None, new), 10)
        self.assertEqual(order.samples_of_run(10, 4, 7, None, new), 28)
        # Steps that were made with another effective batch.
        self.assertEqual(order.samples_of_run(10, 2, 7, None, order.Done(3, 12)), 20)
        with self.assertRaisesRegex(ValueError, "empty"):
            order.SampleOrder(0, 1, shuffle=True)


class OutOfMemoryError(RuntimeError):
    """As torch has it."""


class Report(unittest.TestCase):
    def test_errors_that_are_out_of_memory(self):
        cpu = "[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 800000 bytes."
        for error, want in (
            (OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), 42),
            (RuntimeError("CUDA error: out of memory"), 42),
            (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), 42),
            (RuntimeError(cpu), 43),
            (RuntimeError(f"Caught RuntimeError in DataLoader worker process 0.\n{cpu}"), 43),
            (MemoryError(), 43),
            (OSError(12, "Cannot allocate memory"), 43),
            (RuntimeError("shapes do not match"), None),
            (ValueError("CUDA out of memory"), None),
            (KeyboardInterrupt(), None),
            (None, None),
        ):
            found = report.Shortage.find(error)
            self.assertEqual(found and found.exit_code, want, error)

    def test_a_cause_counts_and_a_survived_error_does_not(self):
        def raised(is_cause):
            try:
                try:
                    raise MemoryError
                except MemoryError as error:
                    raise ValueError from (error if is_cause else None)
            except ValueError as error:
                return error

        self.assertIsNotNone(report.Shortage.find(raised(True)))
        self.assertIsNone(report.Shortage.find(raised(False)))

    def test_the_record(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "oom.json")
            record = report.Shortage(MemoryError("x" * 9000), is_host=True).record("forward", 3, 16, 1)
            self.assertTrue(report.tell_shortage(path, record))
            found = json.loads(path.read_text())
            self.assertEqual(found["message"][:13], "MemoryError: ")
            self.assertEqual(len(found.pop("message")), 2000)
            self.assertEqual(found, dict(memory="host", phase="forward", step=3, batch=16, rank=1))
            self.assertEqual([each.name for each in pathlib.Path(folder).iterdir()], ["oom.json"])
            with contextlib.redirect_stderr(io.StringIO()) as said:
                self.assertFalse(report.tell_shortage(pathlib.Path(folder, "none", "oom.json"), record))
            self.assertIn("cannot write", said.getvalue())
        self.assertFalse(report.tell_shortage(None, record))

    def test_lines_for_pipe(self):
        with contextlib.redirect_stdout(io.StringIO()) as said:
            reporter = report.Reporter(for_pipe=True)
            reporter.tell(3, 10, {"loss": 0.5, "bad": float("nan"), "text": "x", "flag": True, "none": None, "count": 2})
            report.Reporter(for_pipe=True, after_bar=True).tell(4, None, {"loss": 1.0})
        first, second = said.getvalue().split("\n")[:2]
        self.assertEqual(json.loads(first), {"step": 3, "total_steps": 10, "loss": 0.5, "count": 2})
        self.assertEqual((second[0], json.loads(second)), ("\r", {"step": 4, "loss": 1.0}))

    def test_lines_for_people(self):
        with contextlib.redirect_stdout(io.StringIO()) as said:
            reporter = report.Reporter(for_pipe=False)
            for step in range(1, 100):
                reporter.tell(step, 99, {"loss": 1 / step}, is_last=step == 99)
            reporter.tell(99, 99, {"eval_loss": 2.0})
        lines = said.getvalue().splitlines()
        self.assertEqual((lines[0], lines[-2], lines[-1]), ("step 1/99  loss 1", "step 99/99  loss 0.010101", "step 99/99  eval_loss 2"))
        self.assertLess(len(lines), 50)

    def test_an_uncaught_one_ends_with_the_exit_code_and_all_that_was_to_be_done_at_the_end(self):
        code = (
            "import atexit, pathlib, sys; from pipe_train.report import ExceptionHook\n"
            "atexit.register(print, 'at exit'); hook = ExceptionHook(pathlib.Path(sys.argv[1]), 8); hook.install()\n"
            "hook.has_begun, hook.step = True, 4\n"
            "def backward(): raise MemoryError('all of it')\n"
            "backward() if sys.argv[2] == 'oom' else 1 / 0\n"
        )
        for kind, want in (("oom", 43), ("bug", 1)):
            with tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder, "oom.json")
                found = subprocess.run([sys.executable, "-c", code, str(path), kind], capture_output=True, text=True, cwd=FOLDER.parent)
                self.assertEqual((found.returncode, found.stdout), (want, "at exit\n"), found.stderr)
                self.assertIn("Traceback", found.stderr)
                self.assertEqual(path.exists(), kind == "oom")
                if kind == "oom":
                    record = json.loads(path.read_text())
                    self.assertEqual((record["phase"], record["step"]), ("backward", 5))


class Checkpoints(unittest.TestCase):
    def test_the_newest_is_that_of_the_largest_step(self):
        with tempfile.TemporaryDirectory() as text:
            folder = pathlib.Path(text)
            self.assertEqual(checkpoint.found(folder / "none"), [])
            for name in ("checkpoint-9.pt", "checkpoint-10.pt", "checkpoint-x.pt", ".checkpoint-11.pt.77", "model.pt"):
                (folder / name).touch()
            self.assertEqual([path.name for path in checkpoint.found(folder)], ["checkpoint-10.pt", "checkpoint-9.pt"])
            checkpoint.remove_parts(folder)
            self.assertFalse((folder / ".checkpoint-11.pt.77").exists())
            self.assertEqual(len(list(folder.iterdir())), 4)


if __name__ == "__main__":
    unittest.main()
