// The form of index.html around diffusion.js.

import { load } from "./diffusion.js";

const of = (id) => document.getElementById(id);
const edges = of("edges").getContext("2d", { willReadFrequently: true });
let side = of("edges").width;
let drawn = false; // whether there are edges

function clear() {
  edges.fillStyle = "black";
  edges.fillRect(0, 0, side, side);
  drawn = false;
}

let last = null;
of("edges").addEventListener("pointermove", (event) => {
  if (!event.buttons) return void (last = null);
  const box = of("edges").getBoundingClientRect();
  const point = [side * (event.clientX - box.left) / box.width, side * (event.clientY - box.top) / box.height];
  edges.strokeStyle = "white";
  edges.beginPath();
  edges.moveTo(...(last ?? point));
  edges.lineTo(...point);
  edges.stroke();
  [last, drawn] = [point, true];
});
of("clear").addEventListener("click", clear);
of("file").addEventListener("change", async () => {
  const [file] = of("file").files;
  if (!file) return;
  try {
    edges.drawImage(await createImageBitmap(file), 0, 0, side, side);
    drawn = true;
  } catch {
    of("line").textContent = `${file.name} is no picture that this browser reads; choose a PNG or a JPEG`;
  }
});

// RGBA bytes of the canvas -> 3 h w in [0, 1]
function condition() {
  const { data } = edges.getImageData(0, 0, side, side);
  return Float32Array.from({ length: 3 * side * side }, (_, i) => data[4 * (i % (side * side)) + Math.floor(i / side ** 2)] / 255);
}

function show(image) {
  const bytes = new Uint8ClampedArray(4 * side * side).fill(255);
  image.forEach((value, i) => { bytes[4 * (i % (side * side)) + Math.floor(i / side ** 2)] = Math.round(255 * value); });
  of("picture").getContext("2d").putImageData(new ImageData(bytes, side, side), 0, 0);
}

try {
  const diffusion = window.diffusion = await load();
  side = diffusion.base.side;
  for (const id of ["edges", "picture"]) of(id).width = of(id).height = side;
  clear();
  of("line").textContent = "Ready";
  of("draw").disabled = false;
  of("form").addEventListener("submit", async (event) => {
    event.preventDefault();
    of("draw").disabled = true;
    const start = performance.now();
    try {
      const { image } = await diffusion.draw({
        prompt: of("prompt").value,
        edges: drawn ? condition() : null,
        seed: Number(of("seed").value),
        guidance: Number(of("guidance").value),
        strength: Number(of("strength").value),
        progress: (done, all) => { of("bar").value = done / all; },
      });
      show(image);
      of("line").textContent = `Drawn in ${((performance.now() - start) / 1000).toFixed(1)} s`;
    } catch (error) {
      of("line").textContent = String(error);
    }
    of("draw").disabled = false;
  });
} catch (error) {
  of("line").textContent = String(error);
}
