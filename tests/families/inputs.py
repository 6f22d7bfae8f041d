# SPDX-License-Identifier: Apache-2.0
"""Text, images and sounds for any model: layouts are tried until the high precision model takes one."""

import inspect
import re

IMAGE_TOKENS = ("image_token_id", "image_token_index", "media_placeholder_token_id", "image_patch_id")
AUDIO_TOKENS = ("audio_token_id", "audio_token_index", "speech_token_id", "audio_soft_token_id")
TOWERS = re.compile(r"vision|visual|image|audio|speech|encoder")


def parameters_of(model):
    return set(inspect.signature(model.forward).parameters)


def text_config(config):
    """The config of the text part; of the decoder where an encoder has another one."""
    if not hasattr(config, "get_text_config"):
        return config
    try:
        return config.get_text_config()
    except ValueError:
        return config.get_text_config(decoder=True)


def config_value(config, names, default=None):
    """The first of `names` in the config or one of its sub-configs, towers first."""
    subs = [getattr(config, key, None) for key in getattr(config, "sub_configs", None) or {}]
    subs = [sub for sub in subs if sub is not None]
    for name in names:
        for holder in [*subs, config]:
            value = getattr(holder, name, None)
            if value is None and hasattr(holder, "sub_configs"):
                value = config_value(holder, [name]) if holder is not config else None
            if value is not None:
                return value
    return default


def one(value):
    return value[0] if isinstance(value, (list, tuple)) else value


class Maker:
    def __init__(self, model, torch):
        self.model, self.torch, self.config = model, torch, model.config
        self.takes = parameters_of(model)
        self.generator = torch.Generator().manual_seed(7)
        self.is_robot = "state" in self.takes and hasattr(self.config, "max_state_dim")

    def random(self, *shape):
        return self.torch.randn(shape, generator=self.generator).to(self.model.dtype)

    def ids(self, length, rows=2):
        """Ordinary tokens: the small ids are special ones here."""
        text = text_config(self.config)
        vocab = next((v for v in (getattr(text, k, None) for k in ("vocab_size", "src_vocab_size", "embedding_size",
                                                                  "decoder_vocab_size")) if v), None)
        vocab = vocab or config_value(self.config, ["vocab_size"], 32)
        vocab = min(one(vocab), 1000)
        return self.torch.randint(min(100, vocab // 2), vocab - 1, (rows, length), generator=self.generator)

    def text(self, length=24, rows=2):
        """Keyword arguments of a run on text alone."""
        ids, text = self.ids(length, rows), text_config(self.config)
        result = {"input_ids": ids} if "input_ids" in self.takes else {}
        if "attention_mask" in self.takes and result:
            result["attention_mask"] = self.torch.ones_like(ids)
        if "qformer_input_ids" in self.takes:
            result["qformer_input_ids"] = self.torch.randint(1, 40, (rows, 6), generator=self.generator)
            result["qformer_attention_mask"] = self.torch.ones_like(result["qformer_input_ids"])
        if "bbox" in self.takes and hasattr(self.config, "relative_bias_args"):  # corners as parts of the page
            corners = self.torch.rand((rows, length, 2), generator=self.generator) / 2
            result["bbox"] = self.torch.cat([corners, corners + 0.1], 2)
        if self.is_robot:
            result["state"] = self.random(rows, self.config.max_state_dim)
            result["noise"] = self.random(rows, self.config.chunk_size, self.config.max_action_dim)
            result["timestep"] = self.torch.full((rows,), 0.5)
        if "thinker_reply_part" in self.takes:  # a part that speaks what another part has written
            result |= {"thinker_reply_part": self.random(rows, 1, self.config.embedding_size), "input_text_ids": ids}
        for key in {"generation_steps", "talker_input_ids"} & self.takes:
            places = self.torch.arange(4).expand(rows, 4)
            result = {"inputs_embeds": self.random(rows, 4, text.hidden_size)}
            result["position_ids"] = places if key == "generation_steps" else places.expand(3, rows, 4)
        if "codes" in self.takes:
            result = {"codes": self.ids(12 * self.config.num_quantizers, rows).reshape(rows, -1, 12)}
        if "reference_mel" in self.takes:
            voice = self.config.dit_config
            result = {"code": self.ids(12, 1), "conditioning": self.random(1, voice.enc_emb_dim), "num_steps": 2,
                      "reference_mel": self.random(1, 20, voice.mel_dim)}
        return result | self.decoder(rows)

    def decoder(self, rows):
        if "decoder_input_ids" not in self.takes or not getattr(self.config, "is_encoder_decoder", False):
            return {}
        holder = getattr(self.config, "decoder", None) or getattr(self.config, "decoder_config", None)
        if hasattr(holder, "num_codebooks"):
            return {"decoder_input_ids": self.ids(12, rows * holder.num_codebooks)}
        if hasattr(holder, "num_channels"):
            return {"decoder_input_ids": self.ids(12 * holder.num_channels, rows).reshape(rows, 12, -1)}
        return {"decoder_input_ids": self.ids(12, rows)}

    def frames(self, length=24, rows=2):
        """A token of text and one of each codebook for every moment."""
        ids = self.ids(length * (self.config.num_codebooks + 1), rows).reshape(rows, length, -1)
        return {"input_ids": ids.clamp(max=self.config.codebook_vocab_size - 1)}

    def images(self):
        """Layouts in which models take an image, the special ones first."""
        value = lambda *names, default=None: one(config_value(self.config, names, default))
        channels, size = value("num_channels", "in_channels", "in_chans", default=3), value("image_size", "crop_size", "img_size", default=64)
        patch = value("patch_size", "spatial_patch_size", default=16)
        frames = value("temporal_patch_size", "patch_temporal", default=1)
        merge = max(2, value("spatial_merge_size", "merge_size", default=2))
        tensor, side, torch = self.torch.tensor, 2 * merge, self.torch
        if self.is_robot:
            yield {"pixel_values": self.random(1, 1, channels, size, size), "places": (size // patch) ** 2,
                   "pixel_attention_mask": torch.ones(1, 1, dtype=torch.bool)}
        grids = [key for key in ("image_grid_thw", "grid_thw", "image_grid_hws", "image_grid_hw", "target_sizes") if key in self.takes]
        for key in grids:
            grid = {key: tensor([[1, side, side]] if key.endswith("thw") else [[side, side]])}
            for shape in ((side**2, channels * frames * patch**2), (side**2, channels * patch**2), (side**2, channels, patch, patch),
                          (1, side**2, channels * patch**2)):
                yield {"pixel_values": self.random(*shape), **grid}
        if "spatial_shapes" in self.takes:
            yield {"pixel_values": self.random(1, 16, channels * patch**2), "spatial_shapes": tensor([[4, 4]]),
                   "pixel_attention_mask": torch.ones(1, 16, dtype=torch.int64)}
        for key in ("image_position_ids", "pixel_position_ids"):
            if key in self.takes:
                places = torch.stack(torch.meshgrid(torch.arange(6), torch.arange(6), indexing="xy"), -1).reshape(1, 36, 2)
                yield {"pixel_values": self.random(1, 36, channels * patch**2), key: places}
        if "aspect_ratio_ids" in self.takes:
            tiles = value("max_num_tiles", default=4)
            mask = torch.zeros(1, 1, tiles, dtype=torch.int64)
            mask[..., 0] = 1
            yield {"pixel_values": self.random(1, 1, tiles, channels, size, size), "aspect_ratio_ids": tensor([[1]]),
                   "aspect_ratio_mask": mask}
        if "image_sizes" in self.takes:
            sizes = {"image_sizes": tensor([[size, size]])}
            yield {"pixel_values": self.random(1, 2, channels, size, size), **sizes}
            yield {"pixel_values": self.random(1, channels, size, size), **sizes}
        for pixels in ("pixel_values", "flattened_patches", "pixel_values_videos", "image_pixel_values", "pixel_values_images"):
            if pixels not in self.takes:
                continue
            if pixels == "flattened_patches":
                yield {pixels: torch.cat([torch.ones(1, 16, 2), self.random(1, 16, channels * patch**2)], 2).to(self.model.dtype)}
            count = value("num_frames", "frames_per_clip", default=4)
            if pixels == "pixel_values_videos":
                yield {pixels: self.random(2, count, channels, size, size)}  # two, for logits that are shares of all videos
            yield {pixels: self.random(1, channels, size, size)}
            yield {pixels: self.random(1, 1, channels, size, size)}
            yield {pixels: self.random(1, count, channels, size, size)}
            yield {pixels: self.random(4, frames, patch, patch, channels)}
            yield {pixels: self.random(1, 4, channels * patch**2)}

    def sounds(self):
        value = lambda *names, default=None: one(config_value(self.config, names, default))
        names = ("num_mel_bins", "input_feat_per_channel", "feature_size", "n_mels", "mel_dim", "input_dim", "feature_projection_input_dim",
                 "input_feat_size", "n_mel_bins", "num_chroma")
        widths = list(dict.fromkeys(value(name) for name in names if isinstance(value(name), int))) or [80]
        mels = widths[0]
        if "audio_input_ids" in self.takes:
            yield {"audio_input_ids": self.torch.randint(0, 200, (1, 8, mels), generator=self.generator)}
        if "chunk_sample_lengths" in self.takes:
            yield {"input_features": self.random(1, mels, 64), "chunk_sample_lengths": self.torch.tensor([64 * value("hop_length")])}
        positions = value("max_source_positions", default=None)
        lengths = ([2 * positions, positions] if positions else []) + [128, 64, 200]
        for key in ("input_features", "audio_features", "input_audio_embeds"):
            if key not in self.takes:
                continue
            for length in lengths:
                for shape in [s for width in widths for s in ((1, width, length), (1, length, width))]:
                    masks = {m: self.torch.ones(1, length, dtype=self.torch.int64) for m in
                             ("feature_attention_mask", "input_features_mask", "audio_mask", "features_attention_mask") if m in self.takes}
                    yield {key: self.random(*shape), **masks}
                    if masks:
                        yield {key: self.random(*shape), **{m: v.bool() for m, v in masks.items()}}
                        yield {key: self.random(*shape)}
            yield {key: self.random(1, 64, 4 * mels)}  # pairs of frames with their slopes
        if "input_values" in self.takes:
            size = value("max_length", default=0)
            if size and isinstance(mels, int):
                yield {"input_values": self.random(1, size, mels)}
            if "padding_mask" in self.takes:
                sound = {"input_values": self.random(1, 1, 960), "padding_mask": self.torch.ones(1, 960, dtype=self.torch.bool)}
                if "decoder_input_ids" in self.takes:
                    yield sound | {"decoder_input_ids": None}  # the decoder continues the sound
                yield sound
            yield {"input_values": self.random(1, 4000)}
            yield {"input_values": self.random(1, 1, 3840)}


def run(model, kwargs, torch):
    """The model's outputs that are compared: name -> f32 tensor."""
    torch.manual_seed(0)
    part = model.get_submodule(kwargs.get("part", ""))
    with torch.no_grad():
        out = part(**{key: value for key, value in kwargs.items() if key != "part"})
    items = out.items() if hasattr(out, "items") else {"output": out}.items()
    tensors = {k: v for k, v in items if torch.is_tensor(v) and v.is_floating_point() and "loss" not in k and v.numel() > 1}
    wanted = {k: v for k, v in tensors.items() if "logits" in k or k in ("text_embeds", "image_embeds")}
    wanted = wanted or {k: tensors[k] for k in list(tensors)[:1]}
    if not wanted:
        raise ValueError("no output to compare")
    return {k: v.detach().float() for k, v in wanted.items()}


def feature_count(model, kind, kwargs, torch):
    """How many places in the text the features of an image or a sound take, or None."""
    method = getattr(model, f"get_{kind}_features", None) or getattr(getattr(model, "model", None), f"get_{kind}_features", None)
    if method is None:
        return None
    takes = set(inspect.signature(method).parameters)
    with torch.no_grad():
        out = method(**{k: v for k, v in kwargs.items() if k in takes or "kwargs" in takes})
    out = getattr(out, "pooler_output", out) if not torch.is_tensor(out) else out
    out = out[0] if isinstance(out, tuple) and len(out) and isinstance(out[0], (list, tuple)) else out
    if torch.is_tensor(out):
        return out.numel() // out.shape[-1]
    return sum(part.numel() // part.shape[-1] for part in out)


def with_places(maker, kind, count, kwargs, rows, torch):
    """`rows` texts with `count` places each for the features of `kwargs`."""
    token = config_value(maker.config, IMAGE_TOKENS if kind == "image" else AUDIO_TOKENS)
    token = getattr(maker.config, (IMAGE_TOKENS if kind == "image" else AUDIO_TOKENS)[0], None) or token
    # features without a token or a mask are added to a text of their length
    alone = bool(count) and token is None and "image_embeds_position_mask" not in maker.takes
    text = maker.text(count if alone else 12, rows)
    end = config_value(maker.config, ["eos_token_id"])
    if rows > 1 and end is not None and "input_ids" in text:
        text["input_ids"][:, -1] = one(end)  # where models of the CLIP kind take a text's features
    if count and token is not None and "input_ids" in text:
        ids = torch.cat([text["input_ids"][:, :4], torch.full((rows, count), one(token)), text["input_ids"][:, 4:]], 1)
        text["input_ids"] = ids
        if "attention_mask" in text:
            text["attention_mask"] = torch.ones_like(ids)
        types = (ids == one(token)).long()
        for key in ("mm_token_type_ids", "token_type_ids"):
            if key in maker.takes:
                text[key] = types
    if "image_attention_mask" in maker.takes and "input_ids" in text:
        text["image_attention_mask"] = torch.ones(1, text["input_ids"].shape[1], 1, dtype=torch.int64)
    if "image_embeds_position_mask" in maker.takes and "input_ids" in text:
        places = torch.arange(text["input_ids"].shape[1])
        text["image_embeds_position_mask"] = ((places > 0) & (places <= count)).long()[None]
    if "cross_attention_mask" in maker.takes and "aspect_ratio_ids" in kwargs:
        tiles = kwargs["pixel_values"].shape[2]
        text["cross_attention_mask"] = torch.ones(1, text["input_ids"].shape[1], 1, tiles, dtype=torch.int64)
    return text


NUMBERS = re.compile(r"(?:features|shape|tokens)\D{0,40}?(\d+)")


def find_with(maker, kind, layouts, torch, failures):
    """The first layout that the model takes, with the text it needs; {} when there is none."""
    model = maker.model
    for kwargs in layouts:
        counts, places = [], kwargs.pop("places", None)
        try:
            counts = [places] if places else [feature_count(model, kind, kwargs, torch)]
        except Exception as error:  # noqa: BLE001: a layout that does not fit
            failures.append(f"{kind} features: {error!r}"[:200])
        counts += [0] if not counts or counts[0] is None else []
        counts += [maker.config.latent_query_num] if hasattr(maker.config, "latent_query_num") else []
        tried = set()
        while counts:
            count = counts.pop(0) or 0
            if count in tried or len(tried) > 4:
                continue
            tried.add(count)
            if "input_ids" in maker.takes:
                texts = [with_places(maker, kind, count, kwargs, rows, torch) for rows in ((1,) if count else (2, 1))]
            else:
                texts = [maker.decoder(1)]
            tries = [{**text, **kwargs} for text in texts]
            for given in [*tries, {k: v for k, v in tries[0].items() if k != "attention_mask"}, kwargs]:
                try:
                    run(model, given, torch)
                    return given
                except Exception as error:  # noqa: BLE001
                    failures.append(f"{kind}: {error!r}"[:300])
                    counts += [int(n) for n in NUMBERS.findall(str(error)) if int(n) <= 4096]
    return {}


# Models without a forward of their own have parts that answer each other while they generate.
PARTS = ("thinker", "talker", "talker.code_predictor", "token2wav", "code2wav")


def find_parts(model, torch):
    """Like find, for a model that is run part by part."""
    runs, failures = {}, []
    modules = dict(model.named_modules())
    for name in PARTS:
        if name in modules:
            found, failed = find(modules[name], torch)
            found = found if name == PARTS[0] else {name: found["text"]}
            runs |= {run: {**kwargs, "part": name} for run, kwargs in found.items()}
            failures += failed
    return runs, failures


def find(model, torch):
    """{run: keyword arguments}: text, image and sound, as far as the model takes them. Raises when nothing fits."""
    if type(model).forward is torch.nn.Module.forward:
        return find_parts(model, torch)
    maker = Maker(model, torch)
    failures, runs = [], {}
    text = maker.text()
    if text:
        texts = [text, {"input_ids": text.get("input_ids")}, maker.text(16, 1), {**text, "use_cache": False}]
        texts = [maker.frames()] if hasattr(model.config, "codebook_vocab_size") else texts
        for kwargs in texts:
            try:
                run(model, kwargs, torch)
                runs["text"] = kwargs
                break
            except Exception as error:  # noqa: BLE001
                failures.append(f"text: {error!r}"[:300])
    for kind, name, layouts in (("image", "image", maker.images()), ("audio", "sound", maker.sounds())):
        found = find_with(maker, kind, layouts, torch, failures)
        if found:
            runs[name] = found
    if not runs:
        telling = list(dict.fromkeys(failures))
        raise ValueError("no input fits: " + " | ".join(telling[:2] + telling[2:][-4:]))
    return runs, failures
