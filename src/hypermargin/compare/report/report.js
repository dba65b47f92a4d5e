(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("plane-data").textContent);
  const $ = (id) => document.getElementById(id);
  const report = document.querySelector(".report");

  // The classes' colours, in the order of the pictures; beyond them the marks change.
  const NAMES = ["blue", "red", "green", "purple", "orange", "sky", "faint"];
  const explorer = document.querySelector(".hm-explorer");
  const colour = (name) => getComputedStyle(explorer).getPropertyValue("--" + name).trim();

  const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;

  function mark(context, x, y, kind) {
    context.beginPath();
    if (kind === 0) context.arc(x, y, 4, 0, 7);
    else if (kind === 1) context.rect(x - 3.5, y - 3.5, 7, 7);
    else { context.moveTo(x, y - 5); context.lineTo(x + 5, y + 4); context.lineTo(x - 5, y + 4); context.closePath(); }
    context.fill();
  }

  function draw(canvas, head, frame) {
    const context = canvas.getContext("2d");
    const half = canvas.width / 2;
    const points = head.features[frame];
    const rays = head.directions[frame];
    const lengths = head.labels.map((_, i) => Math.hypot(points[2 * i], points[2 * i + 1]));
    // The longest few may leave the picture, or one of them would make all others a dot.
    const far = [...lengths].sort((a, b) => a - b)[Math.floor(0.98 * (lengths.length - 1))] || 1;
    const unit = (0.74 * half) / far;
    const ink = colour("ink");
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.save();
    context.translate(half, half);
    context.scale(1, -1);
    context.strokeStyle = colour("faint");
    context.lineWidth = 1;
    context.setLineDash([4, 5]);
    context.beginPath();
    context.arc(0, 0, mean(lengths) * unit, 0, 7);
    context.stroke();
    context.setLineDash([]);
    context.globalAlpha = 0.6;
    head.labels.forEach((label, i) => {
      context.fillStyle = colour(NAMES[label % NAMES.length]);
      mark(context, points[2 * i] * unit, points[2 * i + 1] * unit, Math.floor(label / NAMES.length));
    });
    context.globalAlpha = 1;
    context.lineWidth = 2;
    context.strokeStyle = ink;
    context.beginPath();
    head.names.forEach((_, k) => {
      context.moveTo(0, 0);
      context.lineTo(0.84 * half * rays[2 * k], 0.84 * half * rays[2 * k + 1]);
    });
    context.stroke();
    context.restore();
    label(context, half, head, rays, ink);
  }

  // Names stand around the picture at their ray, pushed apart until none covers another.
  function label(context, half, head, rays, ink) {
    const angles = head.names.map((_, k) => Math.atan2(rays[2 * k + 1], rays[2 * k]));
    const order = angles.map((_, k) => k).sort((a, b) => angles[a] - angles[b]);
    const least = Math.min(0.16, (2 * Math.PI) / (order.length + 1));
    for (let round = 0; round < 200; round++) {
      order.forEach((k, i) => {
        const next = order[(i + 1) % order.length];
        let gap = angles[next] - angles[k] + (i + 1 === order.length ? 2 * Math.PI : 0);
        if (order.length > 1 && gap < least) {
          angles[k] -= (least - gap) / 2;
          angles[next] += (least - gap) / 2;
        }
      });
    }
    context.fillStyle = ink;
    context.strokeStyle = colour("ground");
    context.lineWidth = 6;
    context.font = "600 22px system-ui, sans-serif";
    context.textAlign = "center";
    context.textBaseline = "middle";
    head.names.forEach((name, k) => {
      const short = name.length > 8 ? name.slice(0, 7) + "…" : name;
      const x = half + 0.92 * half * Math.cos(angles[k]);
      const y = half - 0.92 * half * Math.sin(angles[k]);
      context.strokeText(short, x, y); // a rim, where a dot lies below
      context.fillText(short, x, y);
    });
  }

  function show() {
    if (!data.length) return;
    const frame = Number($("epoch").value);
    $("epoch-shown").textContent = data[0].epochs[frame] ?? "";
    document.querySelectorAll("[data-right]").forEach((place) => {
      const right = data[Number(place.dataset.right)].right;
      const now = right && right[Math.min(frame, right.length - 1)];
      place.textContent = Number.isFinite(now) ? `: ${(100 * now).toFixed(1)} % right` : "";
    });
    document.querySelectorAll("[data-plane]").forEach((canvas) => {
      const head = data[Number(canvas.dataset.plane)];
      draw(canvas, head, Math.min(frame, head.features.length - 1));
    });
  }

  if (data.length) {
    let timer = 0;
    const stop = () => { clearInterval(timer); timer = 0; $("play").textContent = "Play"; };
    $("epoch").addEventListener("input", () => { stop(); show(); });
    $("play").addEventListener("click", () => {
      if (timer) return stop();
      const last = Number($("epoch").max);
      if (Number($("epoch").value) === last) $("epoch").value = 0;
      show();
      $("play").textContent = "Stop";
      timer = setInterval(() => {
        $("epoch").value = Number($("epoch").value) + 1;
        show();
        if (Number($("epoch").value) === last) stop();
      }, 450);
    });
  }

  // Where a table is wider than its place, say so.
  const measure = () => document.querySelectorAll(".report .wide").forEach((wide) => {
    wide.previousElementSibling.hidden = wide.scrollWidth <= wide.clientWidth + 1;
  });
  addEventListener("resize", measure);
  measure();

  $("theme").addEventListener("change", () => {
    document.documentElement.dataset.theme = $("theme").value;
    explorer.dataset.theme = $("theme").value;
    report.offsetHeight; // colours are read back below
    show();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  show();
})();
