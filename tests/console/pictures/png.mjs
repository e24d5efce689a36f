// Purpose: writes a picture with at most 256 colours as an 8-bit PNG, about a third of the size of the original.
import { crc32, deflateSync } from "node:zlib";

/** @param {import("playwright-core").Page} painter a page that decodes @param {Buffer} png @returns {Promise<Buffer>} */
export async function paletted(painter, png) {
  const { width, height, pixels } = await decode(painter, png);
  const counts = new Map();
  for (const pixel of pixels) counts.set(pixel, (counts.get(pixel) ?? 0) + 1);
  const palette = [...counts].sort((a, b) => b[1] - a[1] || a[0] - b[0]).slice(0, 256).map(([pixel]) => pixel);
  const indices = new Map(palette.map((pixel, index) => [pixel, index]));
  const indexOf = (pixel) => {
    if (!indices.has(pixel)) indices.set(pixel, nearest(palette, pixel));
    return indices.get(pixel);
  };
  const rows = Buffer.alloc((width + 1) * height); // each row begins with its filter: none
  pixels.forEach((pixel, at) => (rows[at + Math.floor(at / width) + 1] = indexOf(pixel)));
  const header = Buffer.alloc(13);
  header.writeUInt32BE(width, 0);
  header.writeUInt32BE(height, 4);
  header.set([8, 3], 8); // 8 bits, a palette
  const colours = Buffer.from(palette.flatMap(channels));
  const parts = [["IHDR", header], ["PLTE", colours], ["IDAT", deflateSync(rows, { level: 9, memLevel: 9 })], ["IEND", Buffer.alloc(0)]];
  return Buffer.concat([Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]), ...parts.map(chunk)]);
}

function chunk([type, data]) {
  const body = Buffer.concat([Buffer.from(type), data]);
  const bounds = Buffer.alloc(8);
  bounds.writeUInt32BE(data.length, 0);
  bounds.writeUInt32BE(crc32(body), 4);
  return Buffer.concat([bounds.subarray(0, 4), body, bounds.subarray(4)]);
}

const channels = (pixel) => [(pixel >> 16) & 255, (pixel >> 8) & 255, pixel & 255];

/** Position of the most similar colour. */
function nearest(palette, pixel) {
  const wanted = channels(pixel);
  const distance = (colour) => channels(colour).reduce((sum, value, at) => sum + (value - wanted[at]) ** 2, 0);
  return palette.reduce((best, colour, at) => (distance(colour) < distance(palette[best]) ? at : best), 0);
}

/** The pixels as numbers 0xRRGGBB, decoded by the browser. */
async function decode(painter, png) {
  const { width, height, data } = await painter.evaluate(async (base64) => {
    const bytes = Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
    const bitmap = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
    const context = new OffscreenCanvas(bitmap.width, bitmap.height).getContext("2d");
    context.drawImage(bitmap, 0, 0);
    const { data } = context.getImageData(0, 0, bitmap.width, bitmap.height);
    let text = "";
    for (let at = 0; at < data.length; at += 0x8000) text += String.fromCharCode(...data.subarray(at, at + 0x8000));
    return { width: bitmap.width, height: bitmap.height, data: btoa(text) };
  }, png.toString("base64"));
  const bytes = Buffer.from(data, "base64");
  const pixels = Uint32Array.from({ length: width * height }, (_, at) => (bytes[4 * at] << 16) | (bytes[4 * at + 1] << 8) | bytes[4 * at + 2]);
  return { width, height, pixels };
}
