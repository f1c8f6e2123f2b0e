// A diffusion base with a control plugin, run by onnxruntime-web. The files are written by make.py:
//
//   text.onnx      tokens 1 n                                       -> context 1 n d
//   plugin.onnx    picture 1 3 h w in [0, 1]                        -> feature_0, ..., finest first
//   unet.onnx      latents 2 c h w, timestep, context, feature_i    -> prediction
//   decoder.onnx   latents 1 c h w                                  -> image 1 3 h w in [0, 1]
//   base.json      sizes, the tokenizer, and for each step of DDIM its timestep and two factors
//
// Rows are those of classifier-free guidance: the empty prompt and the prompt. DDIM's step is linear in the latents and
// the prediction, so `base.json` has one factor for each; all of the schedule is in them.

import * as ort from "./ort.wasm.min.mjs";

ort.env.wasm.numThreads = 1; // more need headers that a plain file server does not send
ort.env.wasm.wasmPaths = new URL("./", import.meta.url).href;

export async function load() {
  const fetched = async (name) => {
    const response = await fetch(new URL(name, import.meta.url));
    if (!response.ok) throw new Error(`${name} is missing (${response.status}); run make browser`);
    return response;
  };
  const base = await (await fetched("base.json")).json();
  const open = async (name) => ort.InferenceSession.create(new Uint8Array(await (await fetched(name)).arrayBuffer()));
  const [text, plugin, unet, decoder] = [await open("text.onnx"), await open("plugin.onnx"), await open("unet.onnx"),
    await open("decoder.onnx")];
  return new Diffusion(base, { text, plugin, unet, decoder });
}

const float = (values, ...dims) => new ort.Tensor("float32", Float32Array.from(values), dims);

class Diffusion {
  constructor(base, sessions) {
    this.base = base;
    this.sessions = sessions;
    this.tokenizer = new Tokenizer(base.tokenizer);
  }

  // Returns RGB in [0, 1], 3 h w. `edges`: the same, or null for none; `noise`: c h w numbers, or null for the seed's;
  // `progress(done, all)` is called after each step.
  async draw({ prompt, edges = null, seed = 0, guidance = 4, strength = 1, noise = null, progress = () => {} }) {
    const { side, latents, channels, steps } = this.base;
    const context = [...await this.encode(""), ...await this.encode(prompt)];
    const features = await this.features(edges, strength);
    let x = noise === null ? normal(seed, channels * latents * latents) : Float32Array.from(noise);
    for (const [i, [timestep, ofLatents, ofPrediction]] of steps.entries()) {
      const { prediction } = await this.sessions.unet.run({
        latents: float([...x, ...x], 2, channels, latents, latents),
        timestep: float([timestep]).reshape([]),
        context: float(context, 2, this.base.tokenizer.length, context.length / 2 / this.base.tokenizer.length),
        ...features,
      });
      const [without, given] = [prediction.data.subarray(0, x.length), prediction.data.subarray(x.length)];
      x = x.map((value, j) => ofLatents * value + ofPrediction * (without[j] + guidance * (given[j] - without[j])));
      progress(i + 1, steps.length);
      await new Promise((done) => setTimeout(done)); // lets the page show it
    }
    const { image } = await this.sessions.decoder.run({ latents: float(x, 1, channels, latents, latents) });
    return { image: image.data, side };
  }

  async encode(text) {
    const ids = this.tokenizer.row(text);
    const tokens = new ort.Tensor("int32", Int32Array.from(ids), [1, ids.length]);
    return (await this.sessions.text.run({ tokens })).context.data;
  }

  // The plugin's, once for both rows; zeros without edges.
  async features(edges, strength) {
    const { side } = this.base;
    const picture = float(edges ?? new Float32Array(3 * side * side), 1, 3, side, side);
    const factor = edges === null ? 0 : strength;
    const found = await this.sessions.plugin.run({ picture });
    const twice = (tensor) => {
      const scaled = tensor.data.map((value) => factor * value);
      return float([...scaled, ...scaled], 2, ...tensor.dims.slice(1));
    };
    return Object.fromEntries(Object.entries(found).map(([name, tensor]) => [name, twice(tensor)]));
  }
}

// CLIP's byte pairs: common/io/clip_tokenizer.py says what each stage is for.
class Tokenizer {
  constructor({ vocabulary, merges, characters, start, end, pad, length }) {
    this.ids = vocabulary;
    this.ranks = new Map(merges.map((pair, rank) => [pair, rank]));
    Object.assign(this, { characters, start, end, pad, length });
  }

  row(text) {
    const clean = text.normalize("NFC").replace(/\s+/gu, " ").toLowerCase();
    const words = clean.match(/'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+/gu) ?? [];
    const ids = words.flatMap((word) => this.pieces(word).map((piece) => this.ids[piece]));
    const row = [this.start, ...ids.slice(0, this.length - 2), this.end];
    return [...row, ...new Array(this.length - row.length).fill(this.pad)];
  }

  pieces(word) {
    const parts = Array.from(new TextEncoder().encode(word), (byte) => this.characters[byte]);
    parts[parts.length - 1] += "</w>";
    for (;;) {
      let best = [Infinity, 0];
      for (let i = 0; i + 1 < parts.length; i++) {
        const rank = this.ranks.get(`${parts[i]} ${parts[i + 1]}`) ?? Infinity;
        if (rank < best[0]) best = [rank, i];
      }
      if (best[0] === Infinity) return parts;
      parts.splice(best[1], 2, parts[best[1]] + parts[best[1] + 1]);
    }
  }
}

// Standard normal numbers of a seed: mulberry32, then Box and Muller. Not JAX's: a seed's picture is another one there.
function normal(seed, count) {
  let state = seed >>> 0;
  const uniform = () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let z = Math.imul(state ^ (state >>> 15), state | 1);
    z ^= z + Math.imul(z ^ (z >>> 7), z | 61);
    return (((z ^ (z >>> 14)) >>> 0) + 0.5) / 4294967296;
  };
  return Float32Array.from({ length: count }, () =>
    Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform()));
}
