// A run under way: its numbers are asked for again and again, and drawn as they come.

const EVERY = 2000; // milliseconds

function startLive() {
  let failed = 0;
  const ask = async () => {
    try {
      const answer = await fetch("log.json", { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.status);
      data.log = await answer.json();
      failed = 0;
      needs();
      drawWords();
      measure(all("figure svg"));
      drawAll();
    } catch {
      failed++;
    }
    const step = data.log?.train?.step.at(-1);
    if (failed > 2) tell("live", say("live_off"));
    else tell("live", step ? say("live_on", { step: whole(step) }) : say("live_wait"));
    if (failed < 5) setTimeout(ask, EVERY);
  };
  ask();
}
