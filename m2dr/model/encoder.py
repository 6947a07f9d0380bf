"""Tokens to embeddings: every layer from one pass, or only the first blocks."""

# Shapes in this room:
#   L layers asked for, B texts, T tokens, H width.

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from m2dr.errors import UserError
from m2dr.model.backbones import attend, backbone_of
from m2dr.model.exits import identity_head, listening, pool, through, watch
from m2dr.model.fitted import FittedExits, TokenFeatures
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
        self.behind = nn.Sequential()  # modules that a vector passes last, but for fitted exits
        self.fitted: FittedExits | None = None  # exits of the layers below the last
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
    def words(self) -> Tensor:
        """The word embeddings of the backbone, [V, H]."""
        words = self.transformer.get_input_embeddings().weight
        assert isinstance(words, Tensor)  # transformers declares a module of any kind
        return words

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
            the exit head of that layer where there is one, and behind the model's modules. A layer
            that has a fitted exit gives what that makes of its state; layer 0 has no other.
        """
        wanted = tuple(layers or range(1, self.blocks + 1))
        self._check([*wanted, *token_layers])
        pooled: dict[int, Tensor] = {}
        needed = self._states_for(wanted)
        norm = self._final_norm_of(self.transformer)

        def take(layer: int, states: Tensor) -> None:
            rest = norm
            if tokens is not None and layer in token_layers:
                states, rest = norm(states), nn.Identity()
                tokens(layer, states)
            if layer in needed:
                pooled[layer] = pool(states, attention_mask, self.card.pooling, rest)

        if needed or token_layers:
            self._run(input_ids, attention_mask, take)
        return torch.stack(self._embedded(wanted, pooled, input_ids, attention_mask))

    def states(
        self, input_ids: Tensor, attention_mask: Tensor | None, layers: Sequence[int] = ()
    ) -> Tensor:
        """Return what a fit of exits reads: the pooled states of all layers, and the embedding.

        Args:
            input_ids: [B, T].
            attention_mask: [B, T] or None, as for `forward`.
            layers: whose embeddings stand at the end; the last one's by default.

        Returns:
            [B, (L - 1) P + n width] float32: pooled states of layers 1 to L - 1 before any exit
            head, and behind them the embeddings of the n layers, as `forward` gives them.
        """
        norm, pooled = self._final_norm_of(self.transformer), {}

        def take(layer: int, states: Tensor) -> None:
            pooled[layer] = pool(states, attention_mask, self.card.pooling, norm)

        self._run(input_ids, attention_mask, take)
        shallow = [pooled[layer] for layer in range(1, self.blocks)]
        asked = tuple(layers) or (self.blocks,)
        found = self._embedded(asked, pooled, input_ids, attention_mask)
        return torch.cat([*shallow, *found], dim=-1)

    def _states_for(self, layers: Sequence[int]) -> set[int]:
        """Return the layers whose pooled states the embeddings of some layers are made of."""
        needed = {layer for layer in layers if not self._is_fitted(layer)}
        return needed if self.fitted is None else needed | self.fitted.states_for(tuple(layers))

    def _embedded(
        self,
        layers: tuple[int, ...],
        pooled: Mapping[int, Tensor],
        input_ids: Tensor,
        attention_mask: Tensor | None,
    ) -> list[Tensor]:
        """Return the embeddings [B, width] of layers from pooled states [B, P]."""
        by_exit = tuple(layer for layer in layers if self._is_fitted(layer))
        found = {
            layer: through(self.behind, through(self._head_of(layer), pooled[layer]))
            for layer in layers
            if layer not in by_exit
        }
        if self.fitted is not None:
            found |= self.fitted.embed(by_exit, pooled, self.words, input_ids, attention_mask)
        return [found[layer] for layer in layers]

    def _run(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        take: Callable[[int, Tensor], None],
    ) -> None:
        """Run the backbone, and hand the token states of each layer to `take`."""
        seen = attention_mask
        if seen is not None and self._plain_mask and seen.device.type in NOT_WAITED_FOR:
            # Of a mask [B, T] transformers asks whether it hides anything, and waits for the gpu.
            seen = seen[:, None, None, :].to(torch.bool)
        with listening(take):
            self.transformer(input_ids=input_ids, attention_mask=seen, **self._options)

    @property
    def ends_fitted(self) -> bool:
        """Whether the deepest layer in memory has a fitted exit: the encoder was cut there."""
        return self._is_fitted(self.blocks)

    def _is_fitted(self, layer: int) -> bool:
        return self.fitted is not None and layer in self.fitted.layers

    def _head_of(self, layer: int) -> nn.Module:
        name = str(layer)
        return self.exit_heads[name] if name in self.exit_heads else nn.Identity()

    def _check(self, layers: Sequence[int]) -> None:
        for layer in layers:
            if not 1 <= layer <= self.blocks and not self._is_fitted(layer):
                raise UserError(f"Layer {layer} was asked for; {self.blocks} are loaded.")

    @torch.inference_mode()
    def embed(
        self,
        input_ids: NDArray[np.int64],
        attention_mask: NDArray[np.int64],
        layers: Sequence[int] | None = None,
    ) -> NDArray[np.float32]:
        """The same from arrays to arrays, without gradients: [B, T] twice to [L, B, H]."""
        (vectors,) = self._each([(input_ids, attention_mask)], partial(self, layers=layers))
        return vectors

    def embed_many(
        self,
        batches: Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]],
        layers: Sequence[int] | None = None,
    ) -> Iterator[NDArray[np.float32]]:
        """What `embed` gives for each batch; a gpu is sent the next one before it is asked."""
        return self._each(batches, partial(self, layers=layers))

    def states_many(
        self,
        batches: Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]],
        layers: Sequence[int] = (),
    ) -> Iterator[NDArray[np.float32]]:
        """What `states` gives for each batch, as arrays."""
        return self._each(batches, partial(self.states, layers=layers))

    def features_many(
        self, tokens: TokenFeatures, batches: Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]]
    ) -> Iterator[NDArray[np.float32]]:
        """The features of the tokens of each batch, [B, F]."""
        return self._each(batches, partial(tokens, self.words))

    @torch.inference_mode()
    def _each(
        self,
        batches: Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]],
        run: Callable[[Tensor, Tensor | None], Tensor],
    ) -> Iterator[NDArray[np.float32]]:
        under_way: deque[Callable[[], NDArray[np.float32]]] = deque()
        for input_ids, attention_mask in batches:
            # Asked here: to ask a gpu is to wait for it.
            ids = torch.from_numpy(input_ids)
            mask = None if attention_mask.all() else torch.from_numpy(attention_mask)
            if self.device.type != "cuda":
                vectors: NDArray[np.float32] = run(ids, mask).numpy()
                yield vectors
                continue
            under_way.append(self._begin(ids, mask, run))
            if len(under_way) > IN_FLIGHT:
                yield under_way.popleft()()
        while under_way:
            yield under_way.popleft()()

    def _begin(
        self, ids: Tensor, mask: Tensor | None, run: Callable[[Tensor, Tensor | None], Tensor]
    ) -> Callable[[], NDArray[np.float32]]:
        """Send a batch to the gpu without waiting for it; what is returned waits."""
        ids = ids.pin_memory().to(self.device, non_blocking=True)
        mask = None if mask is None else mask.pin_memory().to(self.device, non_blocking=True)
        vectors = run(ids, mask)
        found = torch.empty(vectors.shape, dtype=vectors.dtype, pin_memory=True)
        found.copy_(vectors, non_blocking=True)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch does not annotate it
        done.record(torch.cuda.current_stream(self.device))

        def wait() -> NDArray[np.float32]:
            done.synchronize()
            read: NDArray[np.float32] = found.numpy()
            return read

        return wait
