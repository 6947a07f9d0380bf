"""The encoder: tokens to the embeddings of all layers in one pass, or of the first layers alone."""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, scaled_dot_product_attention
from transformers import PreTrainedModel
from transformers.models.mpnet.modeling_mpnet import MPNetSelfAttention

from m2dr.core.arrays import Float32, Int64
from m2dr.core.errors import UserError
from m2dr.core.records import ModelCard, pooling_modes
from m2dr.model.backbones import attend, backbone_of
from m2dr.model.exits import FittedExits, float32_on, identity_head, through
from m2dr.model.words import WordTable

# Shapes in this file:
#   L layers asked for, B texts, T tokens, H width of a state, P dims of a pooled vector,
#   W dims of the embedding, V ids of the vocabulary.

ASYNCHRONOUS = ("cuda",)  # types of device that work while the processor goes on
IN_FLIGHT = 2  # batches that a gpu has been sent and whose vectors are not read yet

IdsAndMask = tuple[Int64, Int64]  # [B, T] each
Listener = Callable[[int, Tensor], None]

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


class DualEncoder(nn.Module):
    """A dual encoder that gives one embedding per text and layer.

    It holds the layers that it was loaded with: a cut encoder has no others in memory, and gives
    the vectors that the full model gives at these layers.
    """

    def __init__(self, transformer: PreTrainedModel, card: ModelCard) -> None:
        super().__init__()
        backbone = backbone_of(transformer.config)
        self.transformer = transformer
        for module in transformer.modules():
            if type(module) is MPNetSelfAttention:
                module.__class__ = _FusedMPNetAttention
        self.exit_heads = nn.ModuleDict()  # by layer, as "3"
        self.behind = nn.Sequential()  # modules behind all exits but fitted ones
        self.fitted: FittedExits | None = None  # exits of the layers below the last
        self.card = card
        self.layers = len(backbone.layers_of(transformer))
        self._final_norm_of = backbone.final_norm_of
        self._options = {"use_cache": False} if backbone.causal else {}
        sdpa = transformer.config._attn_implementation == "sdpa"
        self._plain_mask = backbone.plain_mask and sdpa
        # Each layer passes its output to the listener, so that no [B, T, H] need be kept; layer 0
        # is the input of the first layer, the embeddings.
        layers = backbone.layers_of(transformer)
        layers[0].register_forward_pre_hook(_report_embeddings, with_kwargs=True)
        for number, layer in enumerate(layers, start=1):
            layer.register_forward_hook(partial(_report, number))
        if getattr(transformer, "all_tied_weights_keys", None):
            self.register_state_dict_post_hook(_leave_second_names_out)  # type: ignore[no-untyped-call]  # torch does not annotate it
            self.register_load_state_dict_pre_hook(_add_second_names)  # type: ignore[no-untyped-call]  # nor this

    @property
    def card(self) -> ModelCard:
        """The model card; setting it also sets the attention of the backbone."""
        return self._card

    @card.setter
    def card(self, card: ModelCard) -> None:
        attend(self.transformer.config, card.attention)
        self._card = card

    @property
    def words(self) -> WordTable | None:
        """The words that its fitted exits read."""
        return self.fitted.words if self.fitted is not None else None

    @property
    def pooled_width(self) -> int:
        """Dims of a pooled vector; the modules behind it may give others."""
        return len(pooling_modes(self.card.pooling)) * int(self.transformer.config.hidden_size)

    @property
    def word_embeddings(self) -> nn.Embedding:
        """The word embeddings of the backbone, with a weight of [V, H]."""
        return cast(nn.Embedding, self.transformer.get_input_embeddings())

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.parameters()).device

    def add_exit_heads(self, layers: Sequence[int]) -> None:
        """Add an identity as exit head to each of these layers that has none.

        Raises:
            UserError: a layer is not loaded.
        """
        self._check(layers)
        for layer in layers:
            if str(layer) not in self.exit_heads:
                self.exit_heads[str(layer)] = identity_head(self.pooled_width, self.device)

    @contextmanager
    def looking_up_once(self, parts: Sequence[Tensor]) -> Iterator[None]:
        """Look up the words of all parts of a batch at once, while these run in this order.

        The gradient of an embedding is a table of all words: one takes less time than one a part.

        Args:
            parts: ids [b, T] each.
        """
        words = self.word_embeddings
        # Of other classes, and where the table is divided among processes, each part looks up.
        if type(words) is not nn.Embedding or type(words.weight) is not nn.Parameter:
            yield
            return
        ids = torch.cat([part.flatten() for part in parts])
        found = embedding(ids, words.weight, words.padding_idx)
        blocks = iter(found.split([part.numel() for part in parts]))  # type: ignore[no-untyped-call]  # torch does not annotate it
        left = (next(blocks).view(*part.shape, -1) for part in parts)
        handle = words.register_forward_hook(lambda *_: next(left))
        try:
            yield
        finally:
            handle.remove()

    def checkpoint_layers(self, on: bool) -> None:
        """Switch gradient checkpointing on or off.

        With it each layer runs twice per step, and one layer's activations are in memory at a time.

        Raises:
            UserError: transformers does not support it for the backbone.
        """
        if not on:
            self.transformer.activation_checkpointing_disable()  # type: ignore[no-untyped-call]  # transformers does not annotate it
            return
        if not self.transformer.supports_gradient_checkpointing:
            kind = self.transformer.config.model_type
            raise UserError(f"transformers has no gradient checkpointing for type {kind}.")
        self.transformer.activation_checkpointing_enable({"use_reentrant": False})
        # Only reentrant checkpointing needs it; it would ask for gradients of frozen embeddings.
        self.transformer.disable_input_require_grads()  # type: ignore[no-untyped-call]  # nor this

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        layers: Sequence[int] | None = None,
        tokens: Listener | None = None,
        token_layers: Collection[int] = (),
    ) -> Tensor:
        """Embed each text at each layer.

        Args:
            input_ids: [B, T].
            attention_mask: [B, T], 1 for a token and 0 for padding, which is at the end; None where
                nothing is padded, which saves a single query the work of masks.
            layers: which to return, increasing; all from 1 when None. Layer 0 without a fitted exit
                is the input of the first layer, which some recipes train too.
            tokens: is called with each layer of `token_layers` and the states of its tokens
                [B, T, H], behind the final norm and before pooling, first layer first.
            token_layers: the layers whose token states are passed to `tokens`, in any order.

        Returns:
            [L, B, W] float32, not normalised: at index i the pooled state of `layers[i]`, behind
            its exit head, if any, and the model's modules; or the output of its fitted exit.
        """
        wanted = tuple(layers or range(1, self.layers + 1))
        self._check([*wanted, *token_layers])
        pooled: dict[int, Tensor] = {}
        needed = {layer for layer in wanted if layer or not self._is_fitted(layer)}
        if needed or token_layers:
            pooled = self.pooled(input_ids, attention_mask, needed, tokens, token_layers)
        if 0 in wanted and self._is_fitted(0):
            pooled[0] = torch.zeros(len(input_ids), 1, device=input_ids.device)
        return torch.stack(self.embedded(wanted, pooled, attention_mask))

    def states(
        self, input_ids: Tensor, attention_mask: Tensor | None, layers: Sequence[int] = ()
    ) -> Tensor:
        """Return what a fit of exits reads: the pooled states of all layers, and embeddings.

        Args:
            input_ids: [B, T].
            attention_mask: [B, T] or None, as for `forward`.
            layers: the n layers whose embeddings are appended; the last layer by default.

        Returns:
            [B, (L - 1) P + n W] float32: pooled states of layers 1 to L - 1 before any exit head,
            then the embeddings of the n layers, as `forward` gives them.
        """
        pooled = self.pooled(input_ids, attention_mask, range(1, self.layers + 1))
        return self.join_states(pooled, attention_mask, layers)

    def pooled(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        layers: Collection[int],
        tokens: Listener | None = None,
        token_layers: Collection[int] = (),
    ) -> dict[int, Tensor]:
        """Return the pooled states [B, P] of some layers, before any exit; arguments as above."""
        norm, found = self._final_norm_of(self.transformer), {}

        def take(layer: int, states: Tensor) -> None:
            rest = norm
            if tokens is not None and layer in token_layers:
                states, rest = norm(states), nn.Identity()
                tokens(layer, states)
            if layer in layers:
                found[layer] = pool(states, attention_mask, self.card.pooling, rest)

        self._run(input_ids, attention_mask, take)
        return found

    def join_states(
        self,
        pooled: Mapping[int, Tensor],
        attention_mask: Tensor | None,
        layers: Sequence[int] = (),
    ) -> Tensor:
        """Return `states`, computed from the pooled states of all layers from 1."""
        shallow = [pooled[layer] for layer in range(1, self.layers)]
        asked = tuple(layers) or (self.layers,)
        found = self.embedded(asked, pooled, attention_mask)
        return torch.cat([*shallow, *found], dim=-1)

    def embedded(
        self,
        layers: tuple[int, ...],
        pooled: Mapping[int, Tensor],
        attention_mask: Tensor | None,
    ) -> list[Tensor]:
        """Return the embeddings [B, W] of layers from pooled states [B, P].

        Of a fitted exit they lack what words add: zeros at layer 0.
        """
        self._check(layers)
        vectors = [self._embedded(layer, pooled) for layer in layers]
        return [_without_tokens_zero(each, attention_mask) for each in vectors]

    def _embedded(self, layer: int, pooled: Mapping[int, Tensor]) -> Tensor:
        if self.fitted is None or not self._is_fitted(layer):
            return through(self.behind, through(self.head_of(layer), pooled[layer]))
        if layer == 0:
            return pooled[0].new_zeros(len(pooled[0]), self.card.width)
        return through(self.fitted.heads[str(layer)], pooled[layer])

    def _run(self, input_ids: Tensor, attention_mask: Tensor | None, take: Listener) -> None:
        """Run the backbone, and pass the token states of each layer to `take`."""
        mask = attention_mask
        if mask is not None and self._plain_mask and mask.device.type in ASYNCHRONOUS:
            # For a mask [B, T] transformers checks whether it has a 0, and waits for the gpu.
            mask = mask[:, None, None, :].to(torch.bool)
        token = _listener.set(take)  # of this thread alone
        try:
            self.transformer(input_ids=input_ids, attention_mask=mask, **self._options)
        finally:
            _listener.reset(token)

    @property
    def last_layer_has_exit(self) -> bool:
        """Whether the deepest layer in memory has a fitted exit, as in an encoder cut there."""
        return self._is_fitted(self.layers)

    def _is_fitted(self, layer: int) -> bool:
        return self.fitted is not None and layer in self.fitted.layers

    def head_of(self, layer: int) -> nn.Module:
        """Return the exit head of a layer, or the identity."""
        name = str(layer)
        return self.exit_heads[name] if name in self.exit_heads else nn.Identity()

    def _check(self, layers: Sequence[int]) -> None:
        for layer in layers:
            if not 0 <= layer <= self.layers:
                raise UserError(f"Layer {layer} was asked for; {self.layers} are loaded.")

    @torch.inference_mode()
    def embed(
        self, input_ids: Int64, attention_mask: Int64, layers: Sequence[int] | None = None
    ) -> Float32:
        """Embed arrays without gradients: [B, T] twice to [L, B, W]."""
        (vectors,) = self._each([(input_ids, attention_mask)], partial(self, layers=layers))
        return vectors

    def embed_many(
        self, batches: Iterable[IdsAndMask], layers: Sequence[int] | None = None
    ) -> Iterator[Float32]:
        """Yield the embeddings of each batch; a gpu works on the next ones meanwhile."""
        return self._each(batches, partial(self, layers=layers))

    def states_many(
        self, batches: Iterable[IdsAndMask], layers: Sequence[int] = ()
    ) -> Iterator[Float32]:
        """Yield the states of each batch, as `states` gives them."""
        return self._each(batches, partial(self.states, layers=layers))

    @torch.inference_mode()
    def _each(
        self, batches: Iterable[IdsAndMask], run: Callable[[Tensor, Tensor | None], Tensor]
    ) -> Iterator[Float32]:
        """Yield what `run` gives for each batch; on a gpu, some batches ahead of the caller."""
        under_way: deque[Callable[[], Float32]] = deque()
        for input_ids, attention_mask in batches:
            # Checked before the copy: to read from a gpu is to wait for it.
            ids = torch.from_numpy(input_ids)
            mask = None if attention_mask.all() else torch.from_numpy(attention_mask)
            if self.device.type != "cuda":
                vectors: Float32 = run(ids, mask).numpy()
                yield vectors
                continue
            under_way.append(self._begin(ids, mask, run))
            if len(under_way) > IN_FLIGHT:
                yield under_way.popleft()()
        while under_way:
            yield under_way.popleft()()

    def _begin(
        self, ids: Tensor, mask: Tensor | None, run: Callable[[Tensor, Tensor | None], Tensor]
    ) -> Callable[[], Float32]:
        """Send a batch to the gpu without waiting; the function returned waits for its vectors."""
        ids = ids.pin_memory().to(self.device, non_blocking=True)
        mask = None if mask is None else mask.pin_memory().to(self.device, non_blocking=True)
        vectors = run(ids, mask)
        found = torch.empty(vectors.shape, dtype=vectors.dtype, pin_memory=True)
        found.copy_(vectors, non_blocking=True)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch does not annotate it
        done.record(torch.cuda.current_stream(self.device))

        def wait() -> Float32:
            done.synchronize()
            read: Float32 = found.numpy()
            return read

        return wait


class _FusedMPNetAttention(MPNetSelfAttention):
    """MPNet's attention in one fused call; transformers takes its products one by one."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_bias: Any = None,  # a Tensor, which MPNetEncoder always gives
        *_: object,
        **__: object,
    ) -> tuple[Tensor, None]:
        shape = (*hidden_states.shape[:-1], -1, self.attention_head_size)
        queries, keys, values = (
            part(hidden_states).view(shape).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        states = scaled_dot_product_attention(
            queries,
            keys,
            values,
            position_bias if attention_mask is None else position_bias + attention_mask,
            self.dropout.p if self.training else 0.0,
        )
        return self.o(states.transpose(1, 2).flatten(2)), None  # a fused call gives no weights


def pool(states: Tensor, mask: Tensor | None, pooling: str, norm: nn.Module) -> Tensor:
    """Pool the states of each text's tokens into one vector, in float32 under autocast too.

    A norm works on each token alone, so a single token is selected before it is normed.

    Args:
        states: [B, T, H] of a layer.
        mask: [B, T], 1 for a token and 0 for padding, which is at the end; None for no padding.
        pooling: of a ModelCard; `pooling_modes` names its parts.
        norm: the backbone's final norm, or the identity.

    Returns:
        [B, H], or [B, n H] for a pooling of n parts; zeros for a text without a token.
    """
    return _without_tokens_zero(_pool(states, mask, pooling, norm), mask)


def _without_tokens_zero(vectors: Tensor, mask: Tensor | None) -> Tensor:
    return vectors if mask is None else vectors.masked_fill(~mask.any(dim=1, keepdim=True), 0)


def _pool(states: Tensor, mask: Tensor | None, pooling: str, norm: nn.Module) -> Tensor:
    modes = pooling_modes(pooling)
    if len(modes) > 1:
        once = norm(states)
        return torch.cat([_pool(once, mask, mode, nn.Identity()) for mode in modes], dim=-1)
    if pooling in ("max", "mean_sqrt_len_tokens", "weightedmean"):
        # Products and sums are taken one by one: autocast would do a matrix product in bf16.
        states = norm(states).float()
        real = states.new_ones(states.shape[:2]) if mask is None else mask.to(states.dtype)
        if pooling == "max":
            return states.masked_fill(real[..., None] == 0, -torch.inf).amax(dim=1)
        if pooling == "weightedmean":
            real = real * torch.arange(1, states.shape[1] + 1, device=states.device)
        total = real.sum(dim=1, keepdim=True).clamp(min=1)
        divisor = total if pooling == "weightedmean" else total.sqrt()
        return (states * real[..., None]).sum(dim=1) / divisor
    if pooling == "mean":
        normed: Tensor = norm(states).float()
        if mask is None:
            return normed.mean(dim=1)
        shares = mask / mask.sum(dim=1, keepdim=True).clamp(min=1)
        with float32_on(states.device):
            return torch.einsum("bt,bth->bh", shares.float(), normed)
    if pooling == "cls" or mask is None:
        token = states[:, 0 if pooling == "cls" else -1]
    else:
        last = (mask.sum(dim=1) - 1).clamp(min=0)
        # By shape: len() would fix the number of texts in a graph that is exported.
        token = states[torch.arange(states.shape[0], device=states.device), last]
    pooled: Tensor = norm(token)
    return pooled.float()


def _second_names(encoder: nn.Module, prefix: str) -> dict[str, str]:
    """Return the names of weights that have two, as T5's word embeddings: second to first."""
    assert isinstance(encoder, DualEncoder)
    tied = encoder.transformer.all_tied_weights_keys
    return {f"{prefix}transformer.{a}": f"{prefix}transformer.{b}" for a, b in tied.items()}


def _leave_second_names_out(
    encoder: nn.Module, state: dict[str, Tensor], prefix: str, _: object
) -> None:
    """Give each weight one name in a checkpoint: safetensors refuses to write it twice."""
    for name in _second_names(encoder, prefix):
        state.pop(name, None)


def _add_second_names(
    encoder: nn.Module, state: dict[str, Tensor], prefix: str, *_: object
) -> None:
    """Give the weights of a checkpoint all their names."""
    for name, first in _second_names(encoder, prefix).items():
        if first in state:
            state[name] = state[first]


def _report_embeddings(_: nn.Module, given: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
    take = _listener.get()
    if take is not None:
        take(0, given[0] if given else named["hidden_states"])


def _report(layer: int, _: nn.Module, __: object, output: Tensor | tuple[Tensor, ...]) -> None:
    take = _listener.get()
    if take is not None:  # None when gradient checkpointing runs the layer again
        take(layer, output if isinstance(output, Tensor) else output[0])


def parameters_of(encoder: DualEncoder, layer: int) -> int:
    """Return the number of parameters in memory to encode texts at a layer.

    Args:
        encoder: one that holds no more layers than that.
        layer: 0 counts its words alone, which are all that it reads.
    """
    fitted, table, words = encoder.fitted, encoder.words, 0
    if fitted is not None and table is not None and layer in fitted.layers:
        words = table.table.size + table.weights.size
    return words if layer == 0 else _numbers(encoder.parameters()) + words


def exit_work(encoder: DualEncoder) -> dict[int, int]:
    """Return the multiply-adds from a pooled state to its embedding, by layer from 1.

    They are those of the exit head and the modules behind it, which a fitted exit does not have;
    that one maps the vector of words too.
    """
    fitted, words, behind = encoder.fitted, encoder.words, _products(encoder.behind)
    found = {}
    for layer in range(1, encoder.layers + 1):
        if fitted is not None and layer in fitted.layers:
            beside = words.beside[layer].size if words and layer in words.beside else 0
            found[layer] = _products(fitted.heads[str(layer)]) + beside
        else:
            found[layer] = _products(encoder.head_of(layer)) + behind
    return found


def table_work(encoder: DualEncoder) -> dict[int, int]:
    """Return the multiply-adds per word of the table that fitted exits read, by layer."""
    words = encoder.words
    return dict.fromkeys(words.layers, words.width) if words else {}


def _products(module: nn.Module) -> int:
    """Return the multiply-adds of one vector through the matrices of a module."""
    return _numbers(weights for weights in module.parameters() if weights.dim() == 2)


def _numbers(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def share_weights(encoder: DualEncoder, source: DualEncoder) -> None:
    """Let the tensors of an encoder that equal those of another one be the same memory."""
    held = {**dict(source.named_parameters()), **dict(source.named_buffers())}
    for name, tensor in [*encoder.named_parameters(), *encoder.named_buffers()]:
        same = held.get(name)
        if same is not None and same.dtype == tensor.dtype and torch.equal(same, tensor):
            tensor.data = same.data
