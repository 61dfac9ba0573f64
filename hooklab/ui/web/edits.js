// A list of edits as a short text for the address: "conv3~forward~zero~~5.17,fc1~tensor~scale~0.5".
// Fields: layer ~ hook ~ action ~ value ("-1_1" is a pair) ~ channels ("5.7-9") ~ seed ~ "off".

export function parse(text) {
  return (text ?? "").split(",").filter(Boolean).map(word => {
    const [layer, hook = "forward", action = "watch", value = "", channels = "", seed = "", off = ""] = word.split("~");
    const edit = {layer, hook, action, on: off !== "off"};
    if (value) edit.value = value.includes("_") ? value.split("_").map(number) : number(value);
    if (channels) edit.channels = channels.split(".").flatMap(span);
    if (seed) edit.seed = number(seed);
    return edit;
  });
}

export function format(edits) {
  const words = edits.map(({layer, hook, action, value, channels, seed, on}) => [
    layer, hook, action, Array.isArray(value) ? value.join("_") : value ?? "", Array.isArray(channels) ? spans(channels) : "", seed ?? "", on === false ? "off" : "",
  ].join("~").replace(/~+$/, ""));
  return words.join(",") || null;
}

// Where a layer of the page can be hooked: "pool:3.input" is what enters the third call of pool.
export function layerPlace(layer) {
  return layer.endsWith(".input") ? {layer: layer.slice(0, -".input".length), hook: "forward_pre"} : {layer, hook: "forward"};
}

// The same edits with one channel of the page's layer silenced too, in an edit that silences there already, or a new one.
export function silenced(text, layer, channel) {
  const edits = parse(text), place = layerPlace(layer);
  const there = edits.find(edit => edit.layer === place.layer && edit.hook === place.hook && edit.action === "zero" && edit.channels && edit.on);
  if (!there) edits.push({...place, action: "zero", channels: [channel]});
  else if (!there.channels.includes(channel)) there.channels.push(channel);
  return format(edits);
}

// What is no number stays as it was written, so that the server can name it.
const number = text => text.trim() !== "" && !isNaN(text) ? Number(text) : text;

function span(text) {
  const [, from, to] = /^(\d{1,5})-(\d{1,5})$/.exec(text) ?? [];
  if (from === undefined || Number(to) < Number(from) || to - from > 4096) return [number(text)];
  return Array.from({length: to - from + 1}, (_, k) => Number(from) + k);
}

// 7, 8, 9 -> "7-9"
function spans(channels) {
  const words = [];
  channels.forEach((channel, k) => {
    const previous = words.at(-1);
    if (k && previous && channel === channels[k - 1] + 1) previous[1] = channel; else words.push([channel, channel]);
  });
  return words.map(([from, to]) => from === to ? from : `${from}-${to}`).join(".");
}
