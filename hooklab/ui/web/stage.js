// Numbers to pictures. Everything here is a pure function of arrays; hooklab/images.py paints the same in Python.

// A packed array {shape, scale, data: float16 in base64} -> {shape, values: Float32Array}.
export function unpack({shape, scale, data}) {
  const bytes = fromBase64(data), words = new Uint16Array(bytes.buffer, 0, bytes.length / 2);
  return {shape, values: Float32Array.from(words, word => half(word) * scale)};
}

export const fromBase64 = text => Uint8Array.from(atob(text), c => c.charCodeAt(0));

export function toBase64(bytes) {
  let text = "";
  for (let k = 0; k < bytes.length; k += 0x8000) text += String.fromCharCode(...bytes.subarray(k, k + 0x8000));
  return btoa(text);
}

function half(word) {
  const sign = word & 0x8000 ? -1 : 1, exponent = (word >> 10) & 31, fraction = word & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * fraction / 1024);
}

// Bilinear, align_corners=False, as torch.nn.functional.interpolate: (h, w) -> (H, W).
export function bilinear(map, h, w, H, W) {
  const out = new Float32Array(H * W), columns = axis(w, W), rows = axis(h, H);
  for (let y = 0; y < H; y++) {
    const [top, bottom, down] = rows[y];
    for (let x = 0; x < W; x++) {
      const [left, right, across] = columns[x];
      const above = map[top * w + left] * (1 - across) + map[top * w + right] * across;
      const below = map[bottom * w + left] * (1 - across) + map[bottom * w + right] * across;
      out[y * W + x] = above * (1 - down) + below * down;
    }
  }
  return out;
}

function axis(from, to) {
  return Array.from({length: to}, (_, k) => {
    const at = Math.max((k + 0.5) * from / to - 0.5, 0), low = Math.min(Math.floor(at), from - 1);
    return [low, Math.min(low + 1, from - 1), at - low];
  });
}

export function nearest(map, h, w, H, W) {
  const out = new Float32Array(H * W);
  for (let y = 0; y < H; y++)
    for (let x = 0; x < W; x++) out[y * W + x] = map[Math.floor(y * h / H) * w + Math.floor(x * w / W)];
  return out;
}

// Raw signed map -> heat in [0, 1]. "max": ReLU, divided by the peak; "min-max": ReLU, stretched from lowest to highest;
// "signed": zero at one half, for a diverging table. `peak` puts several maps on one scale.
export function heat(raw, h, w, H, W, {smooth = true, normalization = "max", peak = null} = {}) {
  const grow = smooth ? bilinear : nearest, signed = normalization === "signed";
  const grown = grow(signed ? raw : raw.map(v => Math.max(v, 0)), h, w, H, W), [low, high] = range(grown);
  if (signed) {
    const top = peak ?? Math.max(-low, high);
    return grown.map(v => 0.5 + (top > 0 ? 0.5 * Math.max(-1, Math.min(v / top, 1)) : 0));
  }
  const from = normalization === "min-max" ? low : 0, top = peak ?? high;
  return grown.map(v => top > from ? Math.min((v - from) / (top - from), 1) : 0);
}

export function range(values) {
  let low = Infinity, high = -Infinity;
  for (const v of values) { if (v < low) low = v; if (v > high) high = v; }
  return [low, high];
}

// Heat in [0, 1] and a 256-entry table -> RGBA; with pixels (H0, W0, 3) underneath where opacity is below 1.
export function colorize(heat, H, W, table, {pixels = null, size = null, opacity = 1} = {}) {
  const image = new ImageData(W, H), out = image.data;
  for (let y = 0, k = 0; y < H; y++)
    for (let x = 0; x < W; x++, k++) {
      const color = 3 * Math.floor(255 * heat[k] + 0.5);
      const below = pixels && 3 * (Math.floor(y * size[0] / H) * size[1] + Math.floor(x * size[1] / W));
      for (let c = 0; c < 3; c++)
        out[4 * k + c] = pixels ? Math.floor(opacity * table[color + c] + (1 - opacity) * pixels[below + c] + 0.5) : table[color + c];
      out[4 * k + 3] = 255;
    }
  return image;
}

export function picture(pixels, [H, W]) {
  const image = new ImageData(W, H);
  for (let k = 0; k < H * W; k++) image.data.set([pixels[3 * k], pixels[3 * k + 1], pixels[3 * k + 2], 255], 4 * k);
  return image;
}

export function paint(canvas, image) {
  if (canvas.width !== image.width) canvas.width = image.width;
  if (canvas.height !== image.height) canvas.height = image.height;
  canvas.getContext("2d").putImageData(image, 0, 0);
}

export function paintTable(canvas, table) {
  paint(canvas, colorize(Float32Array.from({length: 256}, (_, k) => k / 255), 1, 256, table));
}
