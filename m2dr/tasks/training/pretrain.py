"""`m2dr pretrain`: masked-LM pre-training of a backbone at several cuts (SMAE)."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from m2dr.core.errors import UserError, counted
from m2dr.core.files import json_sha256
from m2dr.core.progress import say
from m2dr.core.records import PRETRAINED, Cut, ModelCard, pooling_modes
from m2dr.core.report import timed
from m2dr.core.settings import PretrainSettings
from m2dr.data.sentences import open_sentences, recognises_sentences
from m2dr.evaluation.sentence_tasks import distinct_sentences
from m2dr.model import checkpoint, mlm
from m2dr.model.backbones import backbone_of
from m2dr.model.checkpoint import Model
from m2dr.model.devices import choose_training_device, set_dropout
from m2dr.model.embed import TextEncoder
from m2dr.model.encoder import DualEncoder
from m2dr.model.hub import revision_of
from m2dr.model.tokens import mask_tokens, masking_order
from m2dr.tasks.corpus import open_corpus
from m2dr.tasks.training.recipe import stairs_of
from m2dr.tasks.training.run_folder import open_backbone, open_training
from m2dr.tasks.training.train import Prepared, TrainReport, plan_of, run
from m2dr.tasks.training.training_data import digest_of
from m2dr.training.smae import MaskedAutoencoder, MaskedTexts, masked_batch


class MaskedText(NamedTuple):
    """A text of a step; its masks depend on the seed, the epoch and the place alone."""

    text: str
    epoch: int
    place: int


def _batch(
    settings: PretrainSettings, loaded: TextEncoder[DualEncoder], chosen: Sequence[MaskedText]
) -> dict[str, object]:
    """Return the module's arguments for some texts."""
    tokenizer = loaded.tokenizer
    inner = tokenizer.inner
    rows = tokenizer([text.text for text in chosen], settings.length)
    special, mask = set(inner.all_special_ids), int(inner.mask_token_id)
    words = min(len(inner), len(loaded.runtime.word_embeddings.weight))

    def hidden(share: float, turn: int) -> MaskedTexts:
        found = []
        for row, text in zip(rows, chosen, strict=True):
            own = [settings.seed, text.epoch, text.place]
            order = masking_order(row, special, np.random.default_rng([*own, 0]))
            draw = np.random.default_rng([*own, turn])
            found.append(mask_tokens(row, share, order, mask, words, draw))
        return found

    encoder, decoder = hidden(settings.encoder_mask, 1), hidden(settings.decoder_mask, 2)
    return masked_batch(rows, encoder, decoder, tokenizer.pad)


@timed
def pretrain(
    settings: PretrainSettings, folder: Path, resume: bool = False, overwrite: bool = False
) -> TrainReport:
    """Train on masked tokens as `settings` say, and write the backbone's folder.

    Raises:
        UserError: anything a person can fix, before the first step where it can be known.
        Interrupted: Ctrl-C; what was trained until the last checkpoint is in the folder.
    """
    setup, count, card = prepare_pretraining(settings, folder)
    with open_training(folder, settings, resume, overwrite, setup.beside):
        plan, cuts = setup.plan, " ".join(map(str, setup.module.cuts))
        say(f"Pre-training {cuts} of {settings.backbone}: {counted(plan.steps, 'steps')}")
        say(f"  {counted(count, 'texts')}, {plan.batch} per step, into {folder}")

        def save(kept: str) -> ModelCard:
            setup.encoder.eval()
            return checkpoint.save(*setup.loaded, replace(card, kept=kept), folder)

        report = run(setup, None, save, folder, resume, "Pre-training")
    return replace(report, then=f"; train it with: m2dr train --backbone {folder}")


def prepare_pretraining(
    settings: PretrainSettings, folder: Path
) -> tuple[Prepared, int, ModelCard]:
    """Load and check all that a pre-training needs; nothing is written.

    Returns:
        It, the number of texts, and the card of the model to be.
    """
    backbone = open_backbone(settings, folder)
    device = choose_training_device(settings.device)
    read: Callable[[int], str]
    if recognises_sentences(settings.corpus, documents=True):
        texts = distinct_sentences(open_sentences(settings.corpus).pairs)[0]
        count, read, digest = len(texts), texts.__getitem__, json_sha256(texts)
    else:
        dataset = open_corpus(settings.corpus)
        count, read = dataset.document_count, lambda place: dataset.document_at(place).content
        digest = digest_of(dataset, settings.corpus)
    if settings.batch_size > count:
        raise UserError(f"batch_size = {settings.batch_size} was asked for, of only {count} texts.")
    _check(settings, backbone)
    loaded = checkpoint.load(backbone, None, device)
    encoder = loaded.runtime
    causal = backbone_of(encoder.transformer.config).causal
    if loaded.tokenizer.inner.mask_token_id is None or causal:
        raise UserError(f"{settings.backbone} predicts no masks: it is causal or has none.")
    decoder = checkpoint.load(backbone, 1, device).runtime
    mlm.remove_word_embeddings(decoder)
    head, pretrained = mlm.masked_head(backbone.files)
    if not pretrained:
        say(f"{settings.backbone} has no masked-LM head: a new one is trained with it.")
    for part in (encoder, decoder):
        set_dropout(part, settings.dropout)
    whole = encoder.card.full
    named = tuple(Cut.parse(word) for word in settings.checkpoints)
    for cut in named:
        encoder.card.check(cut)
    cuts = (*(cut for cut in named if cut != whole), whole) if named else (*stairs_of(whole), whole)
    module = MaskedAutoencoder(
        encoder, mlm.FirstTokenDecoder(decoder), head, encoder.word_embeddings, cuts
    ).to(device)

    def example(epoch: int, place: int) -> MaskedText:
        return MaskedText(read(place), epoch, place)

    plan, examples = plan_of(settings, count, example, encoder, folder)
    card = replace(
        encoder.card,
        backbone=settings.backbone,
        revision=revision_of(backbone.folder),
        variant=PRETRAINED,
        exported_from="",
        fingerprint="",
    )
    batch = partial(_batch, settings, loaded)
    digests = {"data_digest": digest, "backbone_digest": backbone.card.fingerprint}
    return Prepared(loaded, module, plan, examples, batch, digests), count, card


def _check(settings: PretrainSettings, backbone: Model) -> None:
    files, card = backbone.files, backbone.card
    if card.exit_head == "fitted":
        raise UserError(f"{settings.backbone} has fitted exits; pre-train its own {card.backbone}.")
    module, pooling = files.reshaping_module, card.pooling
    if module or len(pooling_modes(pooling)) > 1:
        found = f"the module {module} behind its pooling" if module else f"the pooling {pooling}"
        raise UserError(f"{settings.backbone} has {found}: its vectors are no states of tokens.")
    longest = files.sizes.tokens
    if settings.length > longest:
        raise UserError(f"length = {settings.length} was asked for; the backbone reads {longest}.")
