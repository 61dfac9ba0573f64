// QR codes (ISO/IEC 18004): bytes, error correction level M, versions 1 to 20, which is up to 666 bytes.
// A square of modules is an array of rows of true (dark) and false.

// Of each version: check bytes in a block, and blocks (table 9 of the standard, level M).
const CHECK = [10, 16, 26, 18, 24, 16, 18, 22, 22, 26, 30, 22, 22, 24, 24, 28, 28, 26, 26, 26];
const BLOCKS = [1, 1, 1, 2, 2, 4, 4, 4, 5, 5, 5, 8, 9, 9, 10, 10, 11, 13, 14, 16];
const LEVEL_M = 0b00;

// The modules of a text's QR code, in the smallest version that holds it; RangeError if none does.
export function qrCode(text) {
  const bytes = new TextEncoder().encode(text);
  for (let version = 1; version <= CHECK.length; version++) {
    const {modules, taken} = frame(version);
    const total = taken.flat().filter(t => !t).length >> 3, check = CHECK[version - 1], blocks = BLOCKS[version - 1];
    const room = total - check * blocks, head = version < 10 ? 8 : 16;
    if (4 + head + 8 * bytes.length > 8 * room) continue;
    place(modules, taken, interleave(pack(bytes, head, room), total, check, blocks));
    return masked(modules, taken);
  }
  throw new RangeError(`${bytes.length} bytes: a QR code here holds up to 666`);
}

// One path of all dark modules, with the quiet zone of four that readers need; black on white in every theme.
export function qrSvg(text, label) {
  const modules = qrCode(text), side = modules.length + 8, runs = [];
  modules.forEach((row, y) => {
    for (let x = 0; x < row.length; x++) {
      if (!row[x]) continue;
      const from = x;
      while (row[x + 1]) x++;
      runs.push(`M${from + 4} ${y + 4}h${x - from + 1}v1h${from - x - 1}z`);
    }
  });
  return `<svg role="img" aria-label="${label}" viewBox="0 0 ${side} ${side}" shape-rendering="crispEdges"><rect width="${side}" height="${side}" fill="#fff"/><path d="${runs.join("")}" fill="#000"/></svg>`;
}

// ---- the patterns that every code of a version has

function frame(version) {
  const side = 17 + 4 * version, empty = () => Array.from({length: side}, () => Array(side).fill(false));
  const modules = empty(), taken = empty();
  const put = (x, y, dark) => { if (modules[y]?.[x] !== undefined) modules[y][x] = dark, taken[y][x] = true; };
  const square = (x, y, reach, dark) => { // rings around a centre
    for (let dy = -reach; dy <= reach; dy++)
      for (let dx = -reach; dx <= reach; dx++) put(x + dx, y + dy, dark(Math.max(Math.abs(dx), Math.abs(dy))));
  };
  for (let k = 0; k < side; k++) put(6, k, k % 2 === 0), put(k, 6, k % 2 === 0); // timing
  for (const [x, y] of [[3, 3], [side - 4, 3], [3, side - 4]]) square(x, y, 4, ring => ring !== 2 && ring !== 4); // finders
  const centres = alignment(version, side), last = centres.at(-1);
  for (const x of centres)
    for (const y of centres) {
      const finder = (x === 6 && (y === 6 || y === last)) || (y === 6 && x === last);
      if (!finder) square(x, y, 2, ring => ring !== 1);
    }
  for (let k = 0; k < 15; k++) for (const [x, y] of formatPlaces(k, side)) put(x, y, false); // written with the mask
  put(8, side - 8, true);
  if (version >= 7) {
    const bits = protect(version, 0b1111100100101, 12);
    for (let k = 0; k < 18; k++) {
      const near = Math.floor(k / 3), far = side - 11 + k % 3, dark = Boolean(bits >> k & 1);
      put(near, far, dark), put(far, near, dark);
    }
  }
  return {modules, taken};
}

function alignment(version, side) {
  if (version === 1) return [];
  const count = Math.floor(version / 7) + 2, step = 2 * Math.ceil((side - 13) / (2 * count - 2));
  return [6, ...Array.from({length: count - 1}, (_, k) => side - 7 - (count - 2 - k) * step)];
}

// Both places of bit k of the format, lowest first.
function formatPlaces(k, side) {
  const turn = k < 6 ? [8, k] : k === 6 ? [8, 7] : k === 7 ? [8, 8] : k === 8 ? [7, 8] : [14 - k, 8];
  return [turn, k < 8 ? [side - 1 - k, 8] : [8, side - 15 + k]];
}

// A value followed by its BCH check bits.
function protect(value, generator, bits) {
  let rest = value << bits;
  for (let k = 31 - Math.clz32(rest); k >= bits; k--) if (rest >> k & 1) rest ^= generator << (k - bits);
  return value << bits | rest;
}

// ---- bytes, their check bytes, and where they go

function pack(bytes, head, room) {
  const bits = [];
  const push = (value, length) => { for (let k = length - 1; k >= 0; k--) bits.push(value >> k & 1); };
  push(0b0100, 4), push(bytes.length, head);
  for (const byte of bytes) push(byte, 8);
  push(0, Math.min(4, 8 * room - bits.length));
  while (bits.length % 8) bits.push(0);
  const words = Array.from({length: bits.length / 8}, (_, k) => parseInt(bits.slice(8 * k, 8 * k + 8).join(""), 2));
  for (let k = 0; words.length < room; k++) words.push(k % 2 ? 0x11 : 0xec);
  return words;
}

function interleave(words, total, check, blocks) {
  const short = Math.floor(total / blocks) - check, long = total % blocks; // the last `long` blocks hold one byte more
  const parts = [];
  for (let k = 0, at = 0; k < blocks; k++) {
    const length = short + (k >= blocks - long ? 1 : 0);
    parts.push(words.slice(at, at += length));
  }
  const columns = (rows, length) => Array.from({length}, (_, k) => rows.map(row => row[k])).flat().filter(v => v !== undefined);
  return [...columns(parts, short + 1), ...columns(parts.map(part => reedSolomon(part, check)), check)];
}

// The remainder of the message, times x^check, by the generator with roots 1, a, a^2, ... over GF(256), a = 2.
function reedSolomon(message, check) {
  let generator = [1];
  for (let k = 0, root = 1; k < check; k++, root = times(root, 2))
    generator = [...generator, 0].map((value, j) => value ^ times(generator[j - 1] ?? 0, root));
  const rest = [...message, ...Array(check).fill(0)];
  for (let k = 0; k < message.length; k++) {
    const factor = rest[k];
    generator.forEach((value, j) => rest[k + j] ^= times(value, factor));
  }
  return rest.slice(message.length);
}

function times(a, b) { // in GF(256), modulo x^8 + x^4 + x^3 + x^2 + 1
  let product = 0;
  for (; b; b >>= 1, a = a << 1 ^ (a & 0x80 ? 0x11d : 0)) if (b & 1) product ^= a;
  return product;
}

// Two columns at a time from the right, up and down in turn; the upright timing pattern is stepped over.
function place(modules, taken, words) {
  const side = modules.length;
  let at = 0, up = true;
  for (let right = side - 1; right > 0; right -= 2, up = !up) {
    if (right === 6) right--;
    for (let k = 0; k < side; k++)
      for (const x of [right, right - 1]) {
        const y = up ? side - 1 - k : k;
        if (taken[y][x]) continue;
        modules[y][x] = Boolean(words[at >> 3] >> (7 - at % 8) & 1); // beyond the last byte: undefined, so 0
        at++;
      }
  }
}

// ---- masks

const MASKS = [
  (x, y) => (x + y) % 2, (x, y) => y % 2, x => x % 3, (x, y) => (x + y) % 3,
  (x, y) => (Math.floor(x / 3) + Math.floor(y / 2)) % 2, (x, y) => x * y % 2 + x * y % 3,
  (x, y) => (x * y % 2 + x * y % 3) % 2, (x, y) => ((x + y) % 2 + x * y % 3) % 2,
];

// The modules under the mask that leaves the fewest patterns that confuse readers.
function masked(modules, taken) {
  const side = modules.length;
  const all = MASKS.map((mask, number) => {
    const out = modules.map((row, y) => row.map((dark, x) => dark !== (!taken[y][x] && mask(x, y) === 0)));
    const format = protect(LEVEL_M << 3 | number, 0b10100110111, 10) ^ 0b101010000010010;
    for (let k = 0; k < 15; k++) for (const [x, y] of formatPlaces(k, side)) out[y][x] = Boolean(format >> k & 1);
    return out;
  });
  const scores = all.map(penalty);
  return all[scores.indexOf(Math.min(...scores))];
}

function penalty(modules) {
  const side = modules.length, columns = modules.map((_, x) => modules.map(row => row[x]));
  let score = 0, dark = 0;
  for (const line of [...modules, ...columns]) {
    const text = line.map(Number).join("");
    for (const run of text.match(/0{5,}|1{5,}/g) ?? []) score += run.length - 2;
    score += 40 * (text.match(/(?=00001011101|10111010000)/g) ?? []).length; // looks like a finder
  }
  for (let y = 0; y < side; y++)
    for (let x = 0; x < side; x++) {
      const value = modules[y][x];
      dark += value;
      if (x && y && value === modules[y][x - 1] && value === modules[y - 1][x] && value === modules[y - 1][x - 1]) score += 3;
    }
  return score + 10 * Math.floor(Math.abs(20 * dark / side ** 2 - 10));
}

// ---- the dialog: the current link for everybody in the room

export function openQr(app) {
  const {t} = app, link = location.href, local = ["localhost", "127.0.0.1", "[::1]"].includes(location.hostname);
  let code;
  try { code = qrSvg(link, t.plain("qr.alt")); } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    code = `<p>${t("qr.long")}</p>`;
  }
  app.root.insertAdjacentHTML("beforeend", `
    <dialog class="hl-dialog" aria-labelledby="hl-qr-title">
      <h2 id="hl-qr-title">${t("qr.title")}</h2>
      <div class="hl-qr">${code}</div>
      ${local ? `<p class="hl-soft">${t("qr.local")}</p>` : ""}
      <p class="hl-link">${app.escape(link)}</p>
      <div class="hl-row"><button data-act="copy">${t("copy.link")}</button><span class="hl-space"></span><button data-act="close">${t("close")}</button></div>
    </dialog>`);
  const dialog = app.root.lastElementChild;
  dialog.onclose = () => dialog.remove();
  dialog.onclick = event => {
    if (event.target === dialog || event.target.dataset.act === "close") dialog.close(); // beside the dialog, too
    if (event.target.dataset.act === "copy") app.copy(link, event.target);
  };
  dialog.showModal();
}
