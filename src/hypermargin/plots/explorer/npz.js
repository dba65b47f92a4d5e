// Arrays from a .npz file, as numpy.savez and savez_compressed write it. Nothing in the file is run: arrays of objects,
// which numpy would unpickle, are refused.

const MOST_BYTES = 2 ** 29; // of a file, and of all that is unpacked from it

// Why a file cannot be read, as a word of words.json: the reader may change the language afterwards.
class FileError extends Error {
  constructor(key, values) {
    super(key);
    Object.assign(this, { key, values });
  }
}
const refuse = (key, values = {}) => {
  throw new FileError(key, values);
};

// The members of a zip file by name, each a function that unpacks it; sizes are those of the central directory.
function unzip(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let end = -1;
  for (let i = bytes.length - 22; i >= Math.max(0, bytes.length - 65557); i--) {
    if (view.getUint32(i, true) === 0x06054b50) {
      end = i;
      break;
    }
  }
  if (end < 0) refuse("file_not_zip");
  const count = view.getUint16(end + 10, true);
  let at = view.getUint32(end + 16, true);
  const members = new Map();
  for (let k = 0; k < count; k++) {
    if (at + 46 > bytes.length || view.getUint32(at, true) !== 0x02014b50) refuse("file_damaged");
    const [flags, method] = [view.getUint16(at + 8, true), view.getUint16(at + 10, true)];
    const [packed, size] = [view.getUint32(at + 20, true), view.getUint32(at + 24, true)];
    const [name, extra, comment] = [28, 30, 32].map((offset) => view.getUint16(at + offset, true));
    const start = view.getUint32(at + 42, true);
    const title = new TextDecoder().decode(bytes.subarray(at + 46, at + 46 + name));
    members.set(title.replace(/\.npy$/, ""), { flags, method, packed, size, start });
    at += 46 + name + extra + comment;
  }
  const unpack = async (member) => {
    const { flags, method, packed, size, start } = member;
    if (flags & 1 || ![0, 8].includes(method)) refuse("file_packing");
    if ([packed, size, start].includes(0xffffffff) || size > MOST_BYTES)
      refuse("file_large", { most: MOST_BYTES / 2 ** 20 });
    if (start + 30 > bytes.length || view.getUint32(start, true) !== 0x04034b50) refuse("file_damaged");
    const from = start + 30 + view.getUint16(start + 26, true) + view.getUint16(start + 28, true);
    if (from + packed > bytes.length) refuse("file_damaged");
    const content = bytes.subarray(from, from + packed);
    if (method === 0) return content.length === size ? content : refuse("file_damaged");
    return inflate(content, size);
  };
  return { names: [...members.keys()], read: (name) => unpack(members.get(name)) };
}

// Unpack exactly `size` bytes: a file that says less than it holds is stopped where it says it ends.
async function inflate(content, size) {
  const whole = new Uint8Array(size);
  const reader = new Blob([content]).stream().pipeThrough(new DecompressionStream("deflate-raw")).getReader();
  let at = 0;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      if (at + value.length > size) refuse("file_damaged");
      whole.set(value, at);
      at += value.length;
    }
  } catch (error) {
    reader.cancel().catch(() => {});
    throw error instanceof FileError ? error : new FileError("file_damaged");
  }
  return at === size ? whole : refuse("file_damaged");
}

// What an array is, by its header. `read` returns its numbers as a typed array, its texts as an array; rows of a table lie
// one after the other.
function npy(bytes, name) {
  if (bytes.length < 12 || bytes[0] !== 0x93 || String.fromCharCode(...bytes.subarray(1, 6)) !== "NUMPY") {
    refuse("array_damaged", { name });
  }
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const long = bytes[6] > 1;
  const length = long ? view.getUint32(8, true) : view.getUint16(8, true);
  const from = (long ? 12 : 10) + length;
  if (from > bytes.length) refuse("array_damaged", { name });
  const header = new TextDecoder().decode(bytes.subarray(long ? 12 : 10, from));
  const kind = /'descr'\s*:\s*'([<>|=]?)([a-zA-Z])(\d*)'/.exec(header);
  const sides = /'shape'\s*:\s*\(([\d,\s]*)\)/.exec(header);
  if (!kind || !sides) refuse("array_kind", { name });
  const shape = sides[1]
    .split(",")
    .map((text) => text.trim())
    .filter(Boolean)
    .map(Number);
  const count = shape.reduce((product, side) => product * side, 1);
  const [order, type, width] = [kind[1] !== ">", kind[2], Number(kind[3] || 1)];
  const each = type === "U" ? 4 * width : width;
  if (type === "O" || !"fiubUS".includes(type)) refuse("array_kind", { name });
  if (!Number.isSafeInteger(count) || bytes.length - from !== count * each) refuse("array_damaged", { name });
  const words = "US".includes(type);
  const across = /'fortran_order'\s*:\s*True/.test(header) && shape.length === 2;
  const read = () => {
    const content = bytes.slice(from); // on a boundary of its own
    const values = words
      ? texts(content, type, each, count, order)
      : numbersOf(content, type, width, count, order, name);
    return across ? transposed(values, ...shape) : values;
  };
  return { name, shape, words, read };
}

const TYPES = {
  f4: Float32Array,
  f8: Float64Array,
  i1: Int8Array,
  i2: Int16Array,
  i4: Int32Array,
  i8: BigInt64Array,
  u1: Uint8Array,
  u2: Uint16Array,
  u4: Uint32Array,
  u8: BigUint64Array,
  b1: Uint8Array,
};

function numbersOf(content, type, width, count, little, name) {
  if (!little && width > 1) {
    for (let i = 0; i < content.length; i += width) content.subarray(i, i + width).reverse();
  }
  if (type === "f" && width === 2) return Float32Array.from(new Uint16Array(content.buffer), half);
  const Type = TYPES[type + width] ?? refuse("array_kind", { name });
  const found = new Type(content.buffer, 0, count);
  return width === 8 && type !== "f" ? Float64Array.from(found, Number) : found;
}

function half(bits) {
  const [sign, power, rest] = [bits & 0x8000 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
  if (power === 31) return rest ? NaN : sign * Infinity;
  return sign * (power ? (1 + rest / 1024) * 2 ** (power - 15) : rest * 2 ** -24);
}

function texts(content, type, each, count, little) {
  const view = new DataView(content.buffer);
  const found = new Array(count);
  for (let i = 0; i < count; i++) {
    if (type === "S") {
      found[i] = new TextDecoder().decode(content.subarray(i * each, (i + 1) * each)).replace(/\0+$/, "");
      continue;
    }
    let text = "";
    for (let j = 0; j < each; j += 4) {
      const code = view.getUint32(i * each + j, little);
      if (code && code < 0x110000) text += String.fromCodePoint(code);
    }
    found[i] = text;
  }
  return found;
}

function transposed(values, rows, columns) {
  const found = new values.constructor(values.length);
  for (let i = 0; i < rows; i++) for (let j = 0; j < columns; j++) found[i * columns + j] = values[j * rows + i];
  return found;
}
