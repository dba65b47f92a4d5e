// A ball of points that can be turned: by dragging, and by the arrow keys. Near points are strong, far ones faint.

// Unit vectors to the right, up and towards the eye, seen from an azimuth and an elevation.
function eye(azimuth, elevation) {
  const [ca, sa, ce, se] = [Math.cos(azimuth), Math.sin(azimuth), Math.cos(elevation), Math.sin(elevation)];
  return [
    [-sa, ca, 0],
    [-se * ca, -se * sa, ce],
    [ce * ca, ce * sa, se],
  ];
}

const along = (axis, x, y, z) => axis[0] * x + axis[1] * y + axis[2] * z;

// Colour and mark of a class, as a number: the 22nd looks like the first again. `hue` gives the colour of a name.
const HUES = ["blue", "red", "green", "purple", "orange", "sky", "faint"];
const LOOKS = 3 * HUES.length;
const looks = (hue) => Array.from({ length: LOOKS }, (_, k) => [hue(HUES[k % 7]), Math.floor(k / 7)]);

// `scene` returns {at, kind, styles, arrows, names}: numbers x, y, z of each point, its style's number, and of each
// style [colour, mark]; arrows are [x, y, z, style]. Returns a function that draws again.
function turnable(canvas, scene, name, view = { azimuth: 0.6, elevation: 0.35 }) {
  let frame = 0;
  const again = () => {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      drawBall(canvas, scene(), view);
    });
  };
  const turn = (across, up) => {
    view.azimuth -= across;
    view.elevation = Math.max(-Math.PI / 2, Math.min(Math.PI / 2, view.elevation + up));
    canvas.dataset.view = JSON.stringify([view.azimuth, view.elevation]);
    again();
  };
  let last = null;
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    last = [event.clientX, event.clientY];
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!last || !canvas.hasPointerCapture(event.pointerId)) return;
    const wide = canvas.clientWidth || 1;
    turn((3 * (event.clientX - last[0])) / wide, (3 * (event.clientY - last[1])) / wide);
    last = [event.clientX, event.clientY];
  });
  for (const kind of ["pointerup", "pointercancel"]) canvas.addEventListener(kind, () => (last = null));
  const keys = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] };
  canvas.addEventListener("keydown", (event) => {
    if (!(event.key in keys)) return;
    event.preventDefault();
    turn(...keys[event.key]);
  });
  if (name) canvas.setAttribute("aria-label", name);
  again();
  return again;
}

function drawBall(canvas, { at, kind, styles, arrows = [], ink, ground, faint }, view) {
  const size = Math.max(1, Math.round(canvas.clientWidth * Math.min(2, window.devicePixelRatio || 1)));
  if (canvas.width !== size || canvas.height !== size) [canvas.width, canvas.height] = [size, size];
  const pen = canvas.getContext("2d");
  const [right, up, front] = eye(view.azimuth, view.elevation);
  const half = size / 2;
  const radius = 0.44 * size;
  const count = kind.length;
  pen.clearRect(0, 0, size, size);
  pen.lineWidth = Math.max(1, size / 400);
  pen.strokeStyle = faint;
  pen.beginPath();
  pen.arc(half, half, radius, 0, 7);
  pen.stroke();
  circles(pen, [right, up, front], half, radius);
  const seen = new Float32Array(3 * count);
  for (let i = 0; i < count; i++) {
    const [x, y, z] = [at[3 * i], at[3 * i + 1], at[3 * i + 2]];
    seen[3 * i] = half + radius * along(right, x, y, z);
    seen[3 * i + 1] = half - radius * along(up, x, y, z);
    seen[3 * i + 2] = along(front, x, y, z);
  }
  const dot = Math.max(2, size / (count > 1500 ? 190 : 120));
  for (const near of [false, true]) {
    pen.globalAlpha = near ? 0.85 : 0.16;
    styles.forEach(([colour, mark], style) => {
      pen.fillStyle = colour;
      pen.beginPath();
      for (let i = 0; i < count; i++) {
        if (kind[i] !== style || seen[3 * i + 2] >= 0 !== near) continue;
        spot(pen, seen[3 * i], seen[3 * i + 1], dot / 2, mark);
      }
      pen.fill();
    });
    pen.strokeStyle = ink;
    pen.lineWidth = Math.max(1.5, size / 260);
    for (const [x, y, z, text] of arrows) {
      if (along(front, x, y, z) >= 0 !== near) continue;
      const [px, py] = [half + radius * along(right, x, y, z), half - radius * along(up, x, y, z)];
      pen.globalAlpha = near ? 1 : 0.3;
      pen.beginPath();
      pen.moveTo(half, half);
      pen.lineTo(px, py);
      pen.stroke();
      if (!text) continue;
      pen.font = `600 ${Math.round(size / 26)}px system-ui, sans-serif`;
      pen.fillStyle = ink;
      pen.strokeStyle = ground;
      pen.lineWidth = size / 120;
      pen.strokeText(text, px + size / 60, py);
      pen.fillText(text, px + size / 60, py);
      pen.strokeStyle = ink;
      pen.lineWidth = Math.max(1.5, size / 260);
    }
  }
  pen.globalAlpha = 1;
}

// A mark of its own for every seventh class, beside the colours: dots, squares, triangles.
function spot(pen, x, y, r, mark) {
  pen.moveTo(x + r, y);
  if (mark === 0) pen.arc(x, y, r, 0, 7);
  else if (mark === 1) pen.rect(x - r, y - r, 2 * r, 2 * r);
  else {
    pen.moveTo(x, y - 1.3 * r);
    pen.lineTo(x + 1.3 * r, y + r);
    pen.lineTo(x - 1.3 * r, y + r);
    pen.closePath();
  }
}

// The equator and two meridians, fainter where they are behind.
function circles(pen, [right, up, front], half, radius) {
  for (const [a, b] of [
    [
      [1, 0, 0],
      [0, 1, 0],
    ],
    [
      [1, 0, 0],
      [0, 0, 1],
    ],
    [
      [0, 1, 0],
      [0, 0, 1],
    ],
  ]) {
    for (const near of [false, true]) {
      pen.globalAlpha = near ? 0.5 : 0.15;
      pen.beginPath();
      let down = false;
      for (let k = 0; k <= 72; k++) {
        const [c, s] = [Math.cos((k * Math.PI) / 36), Math.sin((k * Math.PI) / 36)];
        const point = [0, 1, 2].map((i) => c * a[i] + s * b[i]);
        const here = along(front, ...point) >= 0 === near;
        const place = [half + radius * along(right, ...point), half - radius * along(up, ...point)];
        if (here) pen[down ? "lineTo" : "moveTo"](...place);
        down = here;
      }
      pen.stroke();
    }
  }
  pen.globalAlpha = 1;
}
