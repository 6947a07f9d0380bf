"""Tokens to embeddings: every layer from one pass, or only the first blocks."""

# Shapes in this room:
#   L layers asked for, B texts, T tokens, H width.

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from m2dr.errors import UserError
from m2dr.model.backbones import attend, backbone_of
from m2dr.model.exits import identity_head, listening, pool, through, watch
from m2dr.records.card import ModelCard, modes_of

NOT_WAITED_FOR = ("cuda",)  # types of device that work while the processor goes on
IN_FLIGHT = 2  # batches that a card has been sent and whose vectors are not read yet


class Encoder(nn.Module):
    """One embedding per text and per layer.

    Holds as many blocks as it was loaded with: a cut encoder has no others in memory, and gives
    the vectors that the whole one gives at these layers.
    """

    def __init__(self, transformer: PreTrainedModel, card: ModelCard) -> None:
        super().__init__()
        backbone = backbone_of(transformer.config)
        self.transformer = transformer
        self.exit_heads = nn.ModuleDict()  # by layer, as "3"
        self.behind = nn.Sequential()  # modules that a vector of any layer passes last
        self.card = card
        self.blocks = len(backbone.blocks_of(transformer))
        self._final_norm_of = backbone.final_norm_of
        self._options = {"use_cache": False} if backbone.causal else {}
        sdpa = transformer.config._attn_implementation == "sdpa"
        self._plain_mask = backbone.plain_mask and sdpa
        watch(backbone.blocks_of(transformer))

    @property
    def card(self) -> ModelCard:
        """What the model says of itself; how its tokens attend is settled by it."""
        return self._card

    @card.setter
    def card(self, card: ModelCard) -> None:
        attend(self.transformer.config, card.attention)
        self._card = card

    @property
    def pooled_width(self) -> int:
        """Dims of a vector behind the pooling; modules may give it others."""
        return len(modes_of(self.card.pooling)) * int(self.transformer.config.hidden_size)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    def add_exit_heads(self, layers: Sequence[int]) -> None:
        """Give each of these layers an exit head, an identity; one that has a head keeps it.

        Raises:
            UserError: a layer that is not loaded.
        """
        self._check(layers)
        for layer in layers:
            if str(layer) not in self.exit_heads:
                self.exit_heads[str(layer)] = identity_head(self.pooled_width, self.device)

    def checkpoint_blocks(self, on: bool) -> None:
        """Keep only the input of each block in training, and run it again for its gradients.

        Each block runs twice per step, and the activations of one at a time are in memory.

        Raises:
            UserError: transformers cannot do this for the backbone.
        """
        if not on:
            self.transformer.activation_checkpointing_disable()  # type: ignore[no-untyped-call]  # transformers does not annotate it
            return
        if not self.transformer.supports_gradient_checkpointing:
            raise UserError(
                f"Gradient checkpointing was asked for; transformers has none for a backbone of "
                f"type {self.transformer.config.model_type}. Leave it out, or take smaller batches."
            )
        self.transformer.activation_checkpointing_enable({"use_reentrant": False})
        # Needed by the reentrant way alone; left in place, it asks for gradients of frozen words.
        self.transformer.disable_input_require_grads()  # type: ignore[no-untyped-call]  # nor this

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        layers: Sequence[int] | None = None,
        tokens: Callable[[int, Tensor], None] | None = None,
        token_layers: Collection[int] = (),
    ) -> Tensor:
        """Embed each text at each layer.

        Args:
            input_ids: [B, T].
            attention_mask: [B, T], 1 for a token and 0 for padding, which stands at the end; None
                where nothing is padded, which saves a single query the work of masks.
            layers: which to return, increasing; all blocks when None.
            tokens: is called with each layer of `token_layers` and the states of its tokens
                [B, T, H], behind the final norm and before pooling, first layer first.
            token_layers: of which layers, in any order.

        Returns:
            [L, B, H] float32, not normalised; the state after `layers[i]` blocks at index i, behind
            the exit head of that layer where there is one, and behind the model's modules.
        """
        wanted = tuple(layers or range(1, self.blocks + 1))
        self._check([*wanted, *token_layers])
        pooled: dict[int, Tensor] = {}
        norm = self._final_norm_of(self.transformer)

        def take(layer: int, states: Tensor) -> None:
            rest = norm
            if tokens is not None and layer in token_layers:
                states, rest = norm(states), nn.Identity()
                tokens(layer, states)
            if layer in wanted:
                vectors = pool(states, attention_mask, self.card.pooling, rest)
                pooled[layer] = through(self.behind, through(self._head_of(layer), vectors))

        seen = attention_mask
        if seen is not None and self._plain_mask and seen.device.type in NOT_WAITED_FOR:
            # Of a mask [B, T] transformers asks whether it hides anything, and waits for the gpu.
            seen = seen[:, None, None, :].to(torch.bool)
        with listening(take):
            self.transformer(input_ids=input_ids, attention_mask=seen, **self._options)
        return torch.stack([pooled[layer] for layer in wanted])

    def _head_of(self, layer: int) -> nn.Module:
        name = str(layer)
        return self.exit_heads[name] if name in self.exit_heads else nn.Identity()

    def _check(self, layers: Sequence[int]) -> None:
        for layer in layers:
            if not 1 <= layer <= self.blocks:
                raise UserError(f"Layer {layer} was asked for; {self.blocks} are loaded.")

    @torch.inference_mode()
    def embed(
        self,
        input_ids: NDArray[np.int64],
        attention_mask: NDArray[np.int64],
        layers: Sequence[int] | None = None,
    ) -> NDArray[np.float32]:
        """The same from arrays to arrays, without gradients: [B, T] twice to [L, B, H]."""
        device = self.device
        ids = torch.from_numpy(input_ids).to(device)
        mask = None if attention_mask.all() else torch.from_numpy(attention_mask).to(device)
        vectors: NDArray[np.float32] = self(ids, mask, layers).cpu().numpy()
        return vectors

    @torch.inference_mode()
    def embed_many(
        self,
        batches: Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]],
        layers: Sequence[int] | None = None,
    ) -> Iterator[NDArray[np.float32]]:
        """What `embed` gives for each batch; a card is sent the next one before it is asked."""
        under_way: deque[Callable[[], NDArray[np.float32]]] = deque()
        for ids, mask in batches:
            if self.device.type == "cuda":
                under_way.append(self._begin(ids, mask, layers))
            else:
                yield self.embed(ids, mask, layers)
            if len(under_way) > IN_FLIGHT:
                yield under_way.popleft()()
        while under_way:
            yield under_way.popleft()()

    def _begin(
        self,
        input_ids: NDArray[np.int64],
        attention_mask: NDArray[np.int64],
        layers: Sequence[int] | None,
    ) -> Callable[[], NDArray[np.float32]]:
        """Send a batch to the card without waiting for it; what is returned waits."""
        padded = not attention_mask.all()  # asked here: to ask the card is to wait for it
        ids = torch.from_numpy(input_ids).pin_memory().to(self.device, non_blocking=True)
        mask = torch.from_numpy(attention_mask).pin_memory() if padded else None
        sent = mask.to(self.device, non_blocking=True) if mask is not None else None
        vectors = self(ids, sent, layers)
        found = torch.empty(vectors.shape, dtype=vectors.dtype, pin_memory=True)
        found.copy_(vectors, non_blocking=True)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch does not annotate it
        done.record(torch.cuda.current_stream(self.device))

        def wait() -> NDArray[np.float32]:
            done.synchronize()
            read: NDArray[np.float32] = found.numpy()
            return read

        return wait
