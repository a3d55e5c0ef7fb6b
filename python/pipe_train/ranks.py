"""Several processes that share the steps of a run, as torchrun starts them. Gradients are summed over them once a step."""

from __future__ import annotations

import os
from typing import Any, Dict, Iterable, List, Optional, Sequence

import torch
from torch import distributed

# Gradients that are summed at once.
_BUCKET_BYTES = 32 << 20


def device() -> torch.device:
    """Where this rank computes: its own card, or the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    own = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
    torch.cuda.set_device(own)
    return own


class Ranks:
    """This process among those of the run."""

    def __init__(self, where: torch.device) -> None:
        self._where = where if where.type == "cuda" else torch.device("cpu")
        self._is_own = False
        count = int(os.environ.get("WORLD_SIZE", 1))
        if count > 1 and distributed.is_available() and not distributed.is_initialized():
            distributed.init_process_group("nccl" if where.type == "cuda" else "gloo")
            self._is_own = True
        is_there = distributed.is_available() and distributed.is_initialized()
        self.count = distributed.get_world_size() if is_there else 1
        self.index = distributed.get_rank() if is_there else 0

    @property
    def is_first(self) -> bool:
        return self.index == 0

    def close(self, wait: bool) -> None:
        """Leaves the group that was made here; where all went well, when all have come so far."""
        if not self._is_own:
            return
        self._is_own = False
        if wait:
            distributed.barrier()
            distributed.destroy_process_group()

    def sum(self, numbers: Sequence[float]) -> List[float]:
        if self.count == 1:
            return list(numbers)
        total = torch.tensor(numbers, dtype=torch.float64, device=self._where)
        distributed.all_reduce(total)
        return [float(number) for number in total.tolist()]

    def gather(self, value: Dict[str, Any]) -> List[Dict[str, Any]]:
        """The values of all ranks, in their order."""
        if self.count == 1:
            return [value]
        gathered: List[Optional[Dict[str, Any]]] = [None] * self.count
        distributed.all_gather_object(gathered, value)
        return [each for each in gathered if each is not None]

    def broadcast(self, model: torch.nn.Module) -> None:
        """Gives all ranks the weights of the first one."""
        if self.count == 1:
            return
        with torch.no_grad():
            for tensor in [*model.parameters(), *model.buffers()]:
                moved = tensor.detach().to(self._where).contiguous()
                distributed.broadcast(moved, 0)
                if moved.data_ptr() != tensor.data_ptr():
                    tensor.copy_(moved)

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Sums gradients over the ranks. A parameter that no rank has a gradient of keeps none."""
        if self.count == 1:
            return
        used = torch.tensor([each.grad is not None for each in parameters], dtype=torch.int32, device=self._where)
        distributed.all_reduce(used)
        for parameter, is_used in zip(parameters, used.tolist()):
            if is_used and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        for bucket in _buckets([each.grad for each in parameters if each.grad is not None]):
            flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
            distributed.all_reduce(flat)
            for gradient, summed in zip(bucket, torch.split(flat, [gradient.numel() for gradient in bucket])):
                gradient.copy_(summed.view_as(gradient))


def _buckets(gradients: Iterable[torch.Tensor]) -> Iterable[List[torch.Tensor]]:
    """Gradients of one kind that are summed at once. All ranks have them in one order."""
    bucket: List[torch.Tensor] = []
    size = 0
    for gradient in gradients:
        if gradient.is_sparse:
            raise ValueError("sparse gradients cannot be summed over ranks: use sparse=False")
        other = bucket and (bucket[0].dtype, bucket[0].device) != (gradient.dtype, gradient.device)
        if bucket and (other or size >= _BUCKET_BYTES):
            yield bucket
            bucket, size = [], 0
        bucket.append(gradient)
        size += gradient.numel() * gradient.element_size()
    if bucket:
        yield bucket
