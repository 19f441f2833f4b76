// docs/explore.md: sliders over answers of `plan`, which release/explore.py computed. Nothing is fetched.
(() => {
  const data = JSON.parse(document.getElementById("answers").textContent);
  const root = document.getElementById("explore");
  const axes = Object.entries(data.axes);
  const words = { epsilon: "Total ε of a client", clients: "Clients in a round", weights: "Weights", rounds: "Rounds" };
  const trusts = {
    "local": { words: "no one", color: "#d35445", mark: "M-4-4h8v8h-8z" },
    "shuffled": { words: "a shuffler", color: "#d98324", mark: "M0-5 5 4-5 4z" },
    "secure-aggregation": { words: "a secure sum", color: "#2b8aab", mark: "M0-6 6 0 0 6-6 0z" },
    "central": { words: "the server", color: "#8a76c9", mark: "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0" },
  };
  const written = (number) => number.toLocaleString("en-US");
  const slider = ([name, stops]) => `<label>${words[name]} <output></output>
    <input type="range" name="${name}" min="0" max="${stops.length - 1}" value="${Math.floor(stops.length / 2)}"></label>`;
  const radio = (name) => `<label><input type="radio" name="trust" value="${name}"> ${trusts[name].words}</label>`;
  root.innerHTML = `<form>${axes.map(slider).join("")}
    <fieldset><legend>Clients trust</legend>${data.trusts.map(radio).join("")}</fieldset></form>
    <p class="verdict"></p><svg viewBox="0 0 420 250" role="img" aria-label="Noise of the run over ε, a line for each trust">
    </svg><p>From a terminal:</p><pre><code class="command"></code></pre><p>What a client or the server calls in a round:</p>
    <pre><code class="call"></code></pre>`;
  const form = root.querySelector("form");
  form.elements.trust.value = data.trusts[Math.min(2, data.trusts.length - 1)];

  // The answers of all trusts at a place of the sliders; the last axis changes first.
  const at = (place) => data.answers[axes.reduce((sum, [name, stops]) => sum * stops.length + place[name], 0)];

  function picture(place, chosen) {
    const stops = data.axes.epsilon;
    const curves = data.trusts.map((_, i) => stops.map((_, epsilon) => at({ ...place, epsilon })[i].run));
    const logs = curves.flat().map(Math.log10);
    const low = Math.floor(Math.min(...logs, -0.1)), high = Math.ceil(Math.max(...logs, 0.1));
    const x = (i) => 48 + (i * 262) / Math.max(1, stops.length - 1), y = (value) => 212 - (192 * (Math.log10(value) - low)) / (high - low);
    const grid = [];
    for (let power = low, step = Math.ceil((high - low) / 5); power <= high; power += step)
      grid.push(`<path class="grid" d="M48 ${y(10 ** power)}H310"/><text x="42" y="${y(10 ** power) + 4}" text-anchor="end">${written(10 ** power)}</text>`);
    const ticks = stops.map((stop, i) => `<text x="${x(i)}" y="228" text-anchor="middle">${stop}</text>`);
    // Labels at the ends of the lines, moved apart where lines end close together.
    const ends = curves.map((curve, i) => ({ i, at: y(curve[curve.length - 1]) })).sort((a, b) => a.at - b.at);
    ends.forEach((end, k) => { if (k) end.at = Math.max(end.at, ends[k - 1].at + 14); });
    const lines = ends.map(({ i, at: end }) => {
      const { words, color, mark } = trusts[data.trusts[i]], points = curves[i].map((value, k) => `${x(k)} ${y(value)}`);
      const marks = points.map((point) => `<path transform="translate(${point})" d="${mark}"/>`).join("");
      return `<g style="color:${color}" class="${i === chosen ? "chosen" : ""}"><path class="line" d="M${points.join("L")}"/>${marks}
        <text x="320" y="${end + 4}">${words}</text></g>`;
    });
    return `${grid.join("")}<path class="equal" d="M48 ${y(1)}H310"/><path class="here" d="M${x(place.epsilon)} 20V212"/>${ticks.join("")}
      ${lines.join("")}<text x="48" y="12">noise of the run, over its updates</text><text x="179" y="246" text-anchor="middle">total ε</text>`;
  }

  function show() {
    const place = {}, value = {};
    for (const [name, stops] of axes) {
      place[name] = Number(form.elements[name].value);
      value[name] = stops[place[name]];
      form.elements[name].previousElementSibling.textContent = written(value[name]);
    }
    const trust = form.elements.trust.value, chosen = data.trusts.indexOf(trust), answer = at(place)[chosen];
    root.querySelector(".verdict").textContent = `${answer.verdict} A client sends ${written(answer.bytes)} bytes in a round.`;
    root.querySelector("svg").innerHTML = picture(place, chosen);
    root.querySelector(".command").textContent = `ldpkernels plan --eps ${value.epsilon} --rounds ${value.rounds} ` +
      `--clients ${value.clients} --weights ${value.weights} --norm ${data.norm} --trust ${trust}`;
    root.querySelector(".call").textContent = answer.call;
  }
  form.addEventListener("input", show);
  show();
})();
