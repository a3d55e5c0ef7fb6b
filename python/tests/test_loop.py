"""The loop with the real torch, on the CPU: one curve however a step is cut, and after kills, stops and out-of-memory."""

import contextlib
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

import torch
from torch import nn

import pipe_train
from pipe_train import checkpoint
from pipe_train.checkpoint import BadCheckpoint

FOLDER = pathlib.Path(pipe_train.__file__).parent.parent
ROWS = [torch.randint(0, 30, (3 + number % 9,), generator=torch.Generator().manual_seed(number)) for number in range(50)]


class Network(nn.Module):
    def __init__(self, recomputes=False):
        super().__init__()
        self.embedding, self.head = nn.Embedding(30, 16), nn.Linear(16, 30)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Tanh(), pipe_train.Dropout(0.2)) for _ in range(2))
        self.recomputes = recomputes

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) if self.recomputes else block(x)
        return self.head(x)


def collate(rows):
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)


def loss_of(model, ids):
    """The mean over the tokens, and how many there are."""
    targets = ids[:, 1:]
    loss = nn.functional.cross_entropy(model(ids[:, :-1].clamp(min=0)).flatten(0, 1), targets.flatten(), ignore_index=-1)
    return loss, int((targets >= 0).sum())


class Case(unittest.TestCase):
    def setUp(self):
        torch.use_deterministic_algorithms(True)
        torch.set_num_threads(1)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def train(self, batch, until=None, recomputes=False, fail=None, **options):
        """The losses by step, and the weights at the end. With `until` it is left after that step as a kill leaves it."""
        torch.manual_seed(0)
        model = Network(recomputes)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 30)
        losses = {}
        given = dict(steps=15, effective_batch=12, clip=1.0, collate=collate, schedule=schedule, **options)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as self.said:
            with contextlib.ExitStack() as stack:
                run = self.run = stack.enter_context(pipe_train.training(model, optimizer, ROWS, batch=batch, **given))
                for step in run:
                    for index, part in enumerate(step):
                        if fail is not None:
                            fail(run, step, index)
                        step.backward(*loss_of(model, part.batch))
                    losses[step.number] = step.loss
                    if step.number == until:
                        stack.pop_all()
                        run.__exit__(GeneratorExit, GeneratorExit(), None)
                        break
        return losses, [each.detach().clone() for each in model.parameters()]

    def near(self, one, other, tolerance=1e-5):
        self.assertEqual(list(one), list(other))
        for step, loss in one.items():
            self.assertAlmostEqual(loss, other[step], delta=tolerance, msg=f"step {step}")


class Cuts(Case):
    def test_no_cut_changes_the_curve(self):
        whole, weights = self.train(12)
        self.assertLess(whole[15], whole[1])
        for batch in (7, 5, 1):
            cut, other = self.train(batch)
            self.near(cut, whole)
            for one, two in zip(weights, other):
                torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-3)

    def test_gradient_checkpointing_drops_the_same(self):
        self.near(self.train(5, recomputes=True)[0], self.train(12)[0])

    def test_workers_load_the_same(self):
        self.assertEqual(self.train(5, workers=2)[0], self.train(5)[0])

    def test_weights_are_what_the_user_counts(self):
        """One step of a mean over all tokens, computed by hand."""
        torch.manual_seed(0)
        model = Network().eval()
        loss, _ = loss_of(model, collate([ROWS[row] for row in range(12)]))
        want = torch.autograd.grad(loss, list(model.parameters()))
        found = []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        optimizer.register_step_pre_hook(lambda *_: found.extend(each.grad.clone() for each in model.parameters()))
        with contextlib.redirect_stdout(io.StringIO()):
            with pipe_train.training(model, optimizer, ROWS, steps=1, batch=5, effective_batch=12, shuffle=False, collate=collate) as run:
                for step in run:
                    for part in step:
                        step.backward(*loss_of(model, part.batch))
        self.assertAlmostEqual(step.loss, loss.item(), places=6)
        for one, other in zip(found, want):
            torch.testing.assert_close(one, other, atol=1e-7, rtol=1e-5)

    def test_a_scaler(self):
        class Scaler:
            """As torch.amp.GradScaler, which does nothing without a card."""

            def scale(self, loss):
                return loss * 1024

            def unscale_(self, optimizer):
                for group in optimizer.param_groups:
                    for each in group["params"]:
                        each.grad /= 1024

            def step(self, optimizer):
                optimizer.step()

            def update(self):
                pass

            def state_dict(self):
                return {}

        whole, weights = self.train(5)
        scaled, other = self.train(5, scaler=Scaler())
        self.near(scaled, whole, 1e-6)
        torch.testing.assert_close(weights, other, atol=1e-5, rtol=1e-5)


class Continuing(Case):
    def test_after_a_kill_with_the_same_bits(self):
        whole, weights = self.train(5)
        first, _ = self.train(5, until=9, save_every=3, folder=self.folder)
        self.assertEqual([path.name for path in checkpoint.found(self.folder)], ["checkpoint-6.pt", "checkpoint-3.pt"])
        rest, other = self.train(5, save_every=3, folder=self.folder)
        self.assertEqual({**first, **rest}, whole)
        self.assertEqual(list(rest), list(range(7, 16)))
        for one, two in zip(weights, other):
            self.assertTrue(torch.equal(one, two))
        again, _ = self.train(5, folder=self.folder)
        self.assertEqual(again, {})

    def test_with_another_batch_and_from_a_checkpoint_of_pipe(self):
        whole, _ = self.train(12)
        self.train(12, until=9, save_every=4, folder=self.folder)
        os.environ.update(PIPE_RESUME=str(self.folder / "checkpoint-4.pt"), PIPE_BATCH="5", PIPE_EFFECTIVE_BATCH="12")
        self.addCleanup(lambda: [os.environ.pop(name) for name in ("PIPE_RESUME", "PIPE_BATCH", "PIPE_EFFECTIVE_BATCH")])
        rest, _ = self.train(3)
        self.near(rest, {step: whole[step] for step in range(5, 16)})

    def test_a_damaged_checkpoint_is_passed_over(self):
        whole, _ = self.train(5)
        self.train(5, until=9, save_every=4, folder=self.folder)
        path = self.folder / "checkpoint-8.pt"
        path.write_bytes(path.read_bytes()[:500])
        rest, _ = self.train(5, folder=self.folder)
        self.assertEqual(min(rest), 5)
        self.assertIn("checkpoint-8.pt cannot be read", self.said.getvalue())
        self.near(rest, {step: whole[step] for step in range(5, 16)}, 0)
        for path in checkpoint.found(self.folder):
            path.write_bytes(b"x")
        with self.assertRaisesRegex(BadCheckpoint, "no checkpoint in"):
            self.train(5, folder=self.folder)

    def test_another_order_is_refused(self):
        self.train(5, until=9, save_every=4, folder=self.folder)
        with self.assertRaisesRegex(BadCheckpoint, "made with seed 42, and now it is 7"):
            self.train(5, folder=self.folder, seed=7)

    def test_a_save_that_fails_leaves_the_checkpoint_before(self):
        self.train(5, until=9, save_every=4, folder=self.folder)
        with self.assertRaises(Exception):
            checkpoint.save(self.folder, {"step": 12, "x": lambda: None}, 2)
        self.assertEqual([path.name for path in sorted(self.folder.iterdir())], ["checkpoint-4.pt", "checkpoint-8.pt"])

    def test_sigterm_saves_and_ends(self):
        whole, _ = self.train(5)

        def stop(run, step, index):
            if (step.number, index) == (7, 1):
                os.kill(os.getpid(), signal.SIGTERM)
                self.assertTrue(run.stop_requested)

        before = signal.getsignal(signal.SIGTERM)
        with self.assertRaises(SystemExit) as ended:
            self.train(5, fail=stop, folder=self.folder)
        self.assertEqual(ended.exception.code, pipe_train.STOPPED)
        self.assertEqual(signal.getsignal(signal.SIGTERM), before)
        rest, _ = self.train(5, folder=self.folder)
        self.near(rest, {step: whole[step] for step in range(8, 16)}, 0)


class OutOfMemory(Case):
    def raise_in(self, number, error):
        def fail(run, step, index):
            if (step.number, index) == (number, 1):
                raise error

        return fail

    def test_without_pipe_the_error_goes_on_and_the_last_step_is_saved(self):
        with self.assertRaises(MemoryError):
            self.train(5, fail=self.raise_in(7, MemoryError("x")), folder=self.folder)
        self.assertEqual(checkpoint.load_newest(self.folder)["step"], 6)

    def test_under_pipe_it_is_told(self):
        whole, _ = self.train(12)
        record = self.folder / "oom.json"
        given = dict(PIPE_RUN=str(self.folder), PIPE_OOM_RECORD=str(record), PIPE_BATCH="5", PIPE_EFFECTIVE_BATCH="12")
        os.environ.update(given)
        self.addCleanup(lambda: [os.environ.pop(name) for name in given])
        error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        with self.assertRaises(SystemExit) as ended:
            self.train(5, fail=self.raise_in(7, error))
        self.assertEqual(ended.exception.code, 42)
        told = json.loads(record.read_text())
        self.assertEqual((told["memory"], told["phase"], told["step"], told["batch"]), ("device", "forward", 7, 5))
        self.assertIn("Tried to allocate 2.00 GiB", told["message"])
        self.assertIn("Tried to allocate 2.00 GiB", self.said.getvalue())
        os.environ["PIPE_BATCH"] = "2"
        rest, _ = self.train(5)
        self.near(rest, {step: whole[step] for step in range(7, 16)})

    def test_phases(self):
        class Failing(torch.autograd.Function):
            @staticmethod
            def forward(context, x):
                return x.sum()

            @staticmethod
            def backward(context, gradient):
                raise MemoryError

        def in_optimizer(run, step, index):
            if step.number == 7:
                run.optimizer.step = lambda: figures(None)

        def in_backward(run, step, index):
            if step.number == 7:
                step.backward(Failing.apply(torch.ones(1, requires_grad=True)))

        def figures(part):
            raise MemoryError

        for phase, fail, saved in (("optimizer", in_optimizer, None), ("backward", in_backward, 6), ("eval", None, 7)):
            folder = self.folder / phase
            evaluate = (ROWS[:7], figures) if phase == "eval" else None
            with self.assertRaises(MemoryError):
                self.train(5, fail=fail, folder=folder, evaluate=evaluate, evaluate_every=7)
            self.assertEqual(self.run._phase, phase)
            # In its optimizer a step is neither done nor not begun.
            newest = checkpoint.load_newest(folder)
            self.assertEqual(newest and newest["step"], saved)

    def test_an_evaluation_that_did_not_fit_is_done_again(self):
        seen = []

        def figures(part):
            if not seen:
                seen.append("failed")
                raise MemoryError
            seen.append(len(part))
            return 1.0

        with self.assertRaises(MemoryError):
            self.train(5, folder=self.folder, evaluate=(ROWS[:7], figures), evaluate_every=7)
        rest, _ = self.train(4, folder=self.folder, evaluate=(ROWS[:7], figures), evaluate_every=7)
        self.assertEqual(list(rest), list(range(8, 16)))
        # After steps 7, 14 and 15.
        self.assertEqual(seen, ["failed", 4, 3, 4, 3, 4, 3])

    @unittest.skipUnless(hasattr(os, "fork"), "limits of memory")
    def test_a_real_one(self):
        """The allocator of torch under a limit of the kernel, in a process of its own."""
        code = (
            "import resource, torch, pipe_train\n"
            "model = torch.nn.Linear(64, 64); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
            "data = torch.utils.data.TensorDataset(torch.zeros(40, 64))\n"
            "with pipe_train.training(model, optimizer, data, steps=9, batch=8) as run:\n"
            "    for step in run:\n"
            "        for part in step:\n"
            "            if step.number == 5: resource.setrlimit(resource.RLIMIT_DATA, (2 << 30, 2 << 30))\n"
            "            waste = torch.ones(1 << 30) if step.number == 5 else None\n"
            "            step.backward(model(part[0]).square().mean())\n"
        )
        record = self.folder / "oom.json"
        env = dict(os.environ, PIPE_RUN=str(self.folder), PIPE_OOM_RECORD=str(record), PYTHONPATH=os.pathsep.join(sys.path))
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
        self.assertEqual(ended.returncode, 43, ended.stderr)
        self.assertIn("DefaultCPUAllocator", json.loads(record.read_text())["message"])
        self.assertEqual(checkpoint.load_newest(self.folder)["step"], 4)


class Evaluating(Case):
    def test_means_by_weight(self):
        torch.manual_seed(0)
        model = Network().eval()
        want, _ = loss_of(model, collate(ROWS[:7]))
        found = {}
        with contextlib.redirect_stdout(io.StringIO()):
            for batch in (7, 2):
                optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
                evaluate = (ROWS[:7], lambda part: loss_of(model, part.batch))
                with pipe_train.training(model, optimizer, ROWS, steps=1, batch=batch, collate=collate, evaluate=evaluate) as run:
                    model.train()
                    found[batch] = run.evaluate()["loss"]
                    self.assertTrue(model.training)
        self.assertAlmostEqual(found[7], want.item(), places=6)
        self.assertAlmostEqual(found[2], want.item(), places=6)


class Mistakes(Case):
    def loop(self, body, dataset=ROWS, **options):
        model = Network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with contextlib.redirect_stdout(io.StringIO()):
            with pipe_train.training(model, optimizer, dataset, steps=2, batch=5, effective_batch=12, collate=collate, **options) as run:
                for step in run:
                    body(run, step, model)

    def test_what_a_loop_may_forget(self):
        def nothing(run, step, model):
            pass

        def no_backward(run, step, model):
            for part in step:
                pass

        def too_early(run, step, model):
            for part in step:
                step.backward(*loss_of(model, part.batch))
                break

        def twice(run, step, model):
            for part in step:
                step.backward(*loss_of(model, part.batch))
                step.backward(*loss_of(model, part.batch))

        def again(run, step, model):
            for part in step:
                step.backward(*loss_of(model, part.batch))
            list(step)

        def many(run, step, model):
            for part in step:
                step.backward(model(part.batch.clamp(min=0)))

        def weightless(run, step, model):
            for part in step:
                step.backward(loss_of(model, part.batch)[0], weight=0)

        def nan(run, step, model):
            for part in step:
                step.backward(loss_of(model, part.batch)[0] * float("nan"))

        for body, said in (
            (nothing, "step 1 was left after 0 of its parts"),
            (no_backward, "part 1 of step 1 had no step.backward"),
            (too_early, "step 1 was left after 1 of its parts"),
            (twice, "called once for each part"),
            (again, "step 1 was gone through before"),
            (many, "a single number is needed"),
            (weightless, "add up to 0"),
            (nan, "the loss of step 1 is nan"),
        ):
            with self.subTest(body.__name__), self.assertRaisesRegex((RuntimeError, ValueError, pipe_train.NotFinite), said):
                self.loop(body)

    def test_what_cannot_be_trained(self):
        with self.assertRaisesRegex(TypeError, "__len__ and __getitem__"):
            self.loop(None, dataset=iter(ROWS))
        with self.assertRaisesRegex(ValueError, "epochs or steps"):
            self.loop(None, epochs=1)
        with self.assertRaisesRegex(ValueError, "save_every=0"):
            self.loop(None, save_every=0)
        model = nn.DataParallel(Network())
        with self.assertRaisesRegex(TypeError, "not a DataParallel"):
            pipe_train.training(model, torch.optim.SGD(model.parameters(), lr=0.1), ROWS)


class SeveralRanks(Case):
    def start(self, folder, ranks, *words):
        """The script of the tests of `pipe`, as torchrun starts it."""
        script = FOLDER.parent / "tests/fixtures/own_loop.py"
        given = dict(PIPE_RUN=str(folder), PIPE_BATCH="4", PIPE_EFFECTIVE_BATCH="10", OMP_NUM_THREADS="1", PYTHONPATH=os.pathsep.join(sys.path))
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", str(script), *words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ, **given))

    def test_all_of_them_stop_after_one_step(self):
        running = self.start(self.folder, 2, "--steps", "500", "--pause", "0.1")
        told = []
        for line in running.stdout:
            told += [json.loads(line)["step"]] if line.startswith("{") else []
            if told[-1:] == [3]:
                running.terminate()
        said = running.communicate()[1]
        self.assertIn(f"pipe_train: stopped after step {told[-1]}, saved", said)
        self.assertLess(told[-1], 100)
        self.assertEqual(checkpoint.load_newest(self.folder)["step"], told[-1])

    def test_the_curve_of_one(self):
        losses = {}
        for ranks in (1, 2, 3):
            folder = self.folder / str(ranks)
            running = self.start(folder, ranks, "--steps", "8")
            out, said = running.communicate()
            self.assertEqual(running.returncode, 0, said)
            lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
            losses[ranks] = {line["step"]: line["loss"] for line in lines if "loss" in line}
            self.assertEqual(len([line for line in lines if "loss" in line]), 8)
            self.assertEqual([path.name for path in checkpoint.found(folder)][:1], ["checkpoint-8.pt"])
        self.near(losses[2], losses[1])
        self.near(losses[3], losses[1])


if __name__ == "__main__":
    unittest.main()
