"""Dropout by sample is the function of the trainer of `pipe`: docs/dev/dropout.md."""

import json
import os
import pathlib
import subprocess
import unittest
import unittest.mock

import blake3
import torch
from torch import nn

import pipe_train
from pipe_train import dropout, randomness

BENCH = pathlib.Path(os.environ.get("PIPE_TRAINER_BENCH", pathlib.Path(__file__).parents[2] / "target/debug/pipe-trainer-bench"))
KEY = 0x0123456789ABCDEF


def is_kept(words, number, share):
    return (words[number // 2] >> 16 * (number % 2) & 0xFFFF) >= round(share * 65536)


class Masks(unittest.TestCase):
    def test_digests_are_those_of_blake3(self):
        for length in (0, 1, 7, 31, 63, 64):
            message = bytes(range(100, 100 + length))
            self.assertEqual(randomness._blake3(message), blake3.blake3(message).digest())

    def test_hidden_states_number_by_number(self):
        samples, positions, features = 3, 5, 29
        found = dropout.kept(KEY, 7, (samples, positions, features), 0.1, torch.device("cpu"))
        for sample in range(samples):
            for position in range(positions):
                for feature in range(features):
                    words = randomness.philox(KEY, (feature // 8, position, sample + 7, 0))
                    self.assertEqual(bool(found[sample, position, feature]), is_kept(words, feature % 8, 0.1))

    def test_chunks_change_nothing(self):
        for function, shape in ((dropout.kept, (3, 5, 29)), (dropout.kept_weights, (2, 3, 19, 37))):
            whole = function(KEY, 7, shape, 0.3, torch.device("cpu"))
            for draws in (1, 100, 700):
                with unittest.mock.patch.object(dropout, "_DRAWS", draws):
                    self.assertTrue(torch.equal(function(KEY, 7, shape, 0.3, torch.device("cpu")), whole))

    def test_weights_of_attention_number_by_number(self):
        samples, heads, queries, keys = 2, 3, 19, 37
        found = dropout.kept_weights(KEY, 7, (samples, heads, queries, keys), 0.3, torch.device("cpu"))
        for sample in range(samples):
            for head in range(heads):
                for i in range(queries):
                    for j in range(keys):
                        counter = (j // 16 * 32 + i % 8 * 4 + j % 8 // 2, i // 16, sample + 7, head + 1)
                        number = 4 * (j % 16 // 8) + 2 * (i % 16 // 8) + j % 2
                        self.assertEqual(bool(found[sample, head, i, j]), is_kept(randomness.philox(KEY, counter), number, 0.3))

    @unittest.skipUnless(BENCH.is_file(), f"{BENCH} is not built")
    def test_masks_are_those_of_the_trainer(self):
        """The digests that `pipe-trainer-bench dropout-masks` prints, of masks as the layers of a model see them."""
        wanted = json.loads(subprocess.run([BENCH, "dropout-masks", "--precision", "fp32"], capture_output=True, check=True).stdout)
        compared = 0
        for name, digest in wanted.items():
            kind, _, sizes = name.partition(" [")
            sizes = json.loads(f"[{sizes}")
            number = [name for name in wanted if name.startswith("states")].index(name) if kind == "states" else 9
            key = randomness.derived("dropout", 5, [number, 0])
            if kind == "states":
                shape = (sizes[0], sizes[1] if len(sizes) == 3 else 1, sizes[-1])
                mask = dropout.kept(key, 3, shape, 0.1, torch.device("cpu"))
            elif kind == "attention":
                mask = dropout.kept_weights(key, 3, tuple(sizes), 0.1, torch.device("cpu"))
            else:
                continue
            self.assertEqual(blake3.blake3(mask.to(torch.uint8).numpy().tobytes()).hexdigest()[:16], digest, name)
            compared += 1
        self.assertEqual(compared, 8)


class Modules(unittest.TestCase):
    def setUp(self):
        self.addCleanup(dropout.set_drawn, None)

    def test_what_is_kept_is_scaled_and_the_gradient_is_the_same(self):
        module = pipe_train.Dropout(0.25, place=0)
        dropout.set_drawn(dropout.Drawn(seed=1, step=0, place=0, samples=2))
        x = torch.ones(2, 9, requires_grad=True)
        y = module(x)
        y.sum().backward()
        torch.testing.assert_close(y, x.grad)
        self.assertEqual(set(y.detach().flatten().tolist()), {0.0, torch.tensor(65536 / (65536 - 16384)).item()})
        # Even what is not finite is dropped.
        dropout.set_drawn(dropout.Drawn(seed=1, step=0, place=0, samples=2))
        self.assertEqual(int(module(torch.full((2, 9), torch.inf)).isfinite().sum()), int((y == 0).sum()))
        self.assertTrue(torch.equal(module.eval()(x), x))

    def test_a_sample_is_dropped_the_same_in_every_part(self):
        model = nn.Sequential(pipe_train.Dropout(0.5), pipe_train.Dropout(0.5))
        dropout.number_dropouts(model)
        x = torch.ones(6, 4, 5)

        def computed(place, samples):
            dropout.set_drawn(dropout.Drawn(seed=1, step=3, place=place, samples=samples))
            return model(x[place : place + samples])

        whole = computed(0, 6)
        self.assertTrue(torch.equal(torch.cat([computed(0, 2), computed(2, 3), computed(5, 1)]), whole))
        first = model[0](x) if dropout.set_drawn(dropout.Drawn(seed=1, step=3, place=0, samples=6)) is None else None
        self.assertFalse(torch.equal(first != 0, model[1](x) != 0))
        dropout.set_drawn(dropout.Drawn(seed=1, step=4, place=0, samples=6))
        self.assertFalse(torch.equal(model(x), whole))

    def test_a_module_that_is_used_twice_drops_twice(self):
        module = pipe_train.Dropout(0.5, place=0)
        x = torch.ones(4, 50)
        dropout.set_drawn(dropout.Drawn(seed=1, step=0, place=0, samples=4))
        self.assertFalse(torch.equal(module(x), module(x)))

    def test_used_twice_it_cannot_be_computed_again(self):
        module = pipe_train.Dropout(0.5, place=0)
        dropout.set_drawn(dropout.Drawn(seed=1, step=0, place=0, samples=4))
        x = torch.ones(4, 50, requires_grad=True)
        y = torch.utils.checkpoint.checkpoint(lambda x: module(module(x)), x, use_reentrant=False)
        with self.assertRaisesRegex(RuntimeError, "used 2 times in a pass"):
            y.sum().backward()

    def test_where_it_cannot_drop(self):
        module = pipe_train.Dropout(0.5, place=0)
        with self.assertRaisesRegex(RuntimeError, "inside `for part in step`"):
            module(torch.ones(4, 5))
        dropout.set_drawn(dropout.Drawn(seed=1, step=0, place=0, samples=3))
        with self.assertRaisesRegex(RuntimeError, "its first dimension must be the samples"):
            module(torch.ones(4, 5))
        with self.assertRaisesRegex(RuntimeError, "give it a place"):
            pipe_train.Dropout(0.5)(torch.ones(3, 5))
        with self.assertRaisesRegex(RuntimeError, "needs .samples, heads"):
            pipe_train.Dropout(0.5, attention=True, place=1)(torch.ones(3, 5))
        with self.assertRaises(ValueError):
            pipe_train.Dropout(1.0)
        with self.assertRaisesRegex(ValueError, "the same place"):
            dropout.number_dropouts(nn.Sequential(pipe_train.Dropout(0.1, place=1), pipe_train.Dropout(0.1)))

    def test_replacing(self):
        model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Dropout(0.3), nn.ReLU()), nn.Dropout(0.1)).eval()
        self.assertIs(pipe_train.replace_dropout(model), model)
        found = [module for module in model.modules() if isinstance(module, pipe_train.Dropout)]
        self.assertEqual([(each.p, each.training) for each in found], [(0.3, False), (0.1, False)])
        self.assertFalse(any(isinstance(module, nn.Dropout) for module in model.modules()))
        with self.assertRaisesRegex(ValueError, "self_attn is a MultiheadAttention that drops inside"):
            pipe_train.replace_dropout(nn.TransformerEncoderLayer(8, 2, dropout=0.1))


if __name__ == "__main__":
    unittest.main()
