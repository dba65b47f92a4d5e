// A run under way: its numbers are asked for again and again, and drawn as they come.

const EVERY = 2000; // milliseconds
const PATIENCE = 3; // questions without an answer until it is said
let unanswered = 0;

function drawLive() {
  const step = data.log?.train?.step.at(-1);
  if (unanswered >= PATIENCE) tell("live", say("live_off"));
  else tell("live", step ? say("live_on", { step: whole(step) }) : say("live_wait"));
}

async function startLive() {
  try {
    const answer = await fetch("log.json", { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.status);
    data.log = await answer.json();
    unanswered = 0;
    needs();
    drawWords();
    measure(all("figure svg"));
    drawAll();
  } catch {
    unanswered++;
  }
  drawLive();
  if (unanswered < 10 * PATIENCE) setTimeout(startLive, EVERY); // a resumed run has an address of its own
}
