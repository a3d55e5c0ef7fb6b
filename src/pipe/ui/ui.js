// Keeps the page up to date, and shows values under the pointer. Without it, the page shows what was when it was loaded.
'use strict';
(() => {
  const root = document.documentElement, live = document.getElementById('live'), query = document.body.dataset.events;
  const seen = {};
  let source = null, busy = false, waiting = new Set(), drag = null, brushing = null;
  root.classList.add('scripted');

  const say = (text, state) => { live.textContent = text; live.dataset.state = state; };
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];

  // What a person has changed in a part stays when the part is replaced.
  function keep(old) {
    const open = all('details[open] > summary', old).map(summary => summary.textContent);
    const checked = all('input[type=checkbox]:checked', old).map(input => input.value);
    const active = old.contains(document.activeElement) ? document.activeElement : null;
    const typed = active && active.name ? { name: active.name, value: active.value, at: active.selectionStart } : null;
    const focused = active && active.id;
    const scrolled = all('[data-follow]', old).map(log => log.scrollHeight - log.scrollTop - log.clientHeight);
    const beside = all('.table', old).map(table => [table.scrollLeft, table.scrollTop]);
    return part => {
      for (const summary of all('details > summary', part)) {
        if (open.includes(summary.textContent)) summary.parentElement.open = true;
      }
      for (const input of all('input[type=checkbox]', part)) input.checked = checked.includes(input.value);
      all('.table', part).forEach((table, at) => { if (beside[at]) [table.scrollLeft, table.scrollTop] = beside[at]; });
      if (typed) {
        const input = all('[name]', part).find(input => input.name === typed.name);
        if (input) {
          input.value = typed.value;
          input.focus();
          if (typed.at !== null && input.setSelectionRange && input.type === 'search') input.setSelectionRange(typed.at, typed.at);
        }
      } else if (focused) {
        document.getElementById(focused)?.focus();
      }
      all('[data-follow]', part).forEach((log, at) => {
        if (!(scrolled[at] > 8)) log.scrollTop = log.scrollHeight;
      });
    };
  }

  function put(part) {
    const old = document.getElementById(part.id), html = part.innerHTML;
    if (!old || seen[part.id] === html || [drag, brushing].some(one => one && old.contains(one.svg))) return;
    seen[part.id] = html;
    const [before, after] = [old, part].map(one => one.querySelector('[data-keyed]'));
    const ids = body => body && [...body.children].map(row => row.id).join('\n');
    if (before && after && ids(before) === ids(after)) {
      [...after.children].forEach((row, at) => {
        const known = before.children[at];
        if (known.innerHTML === row.innerHTML && known.className === row.className) return;
        const restore = keep(known);
        known.replaceWith(row.cloneNode(true));
        restore(before.children[at]);
      });
      return;
    }
    const restore = keep(old);
    old.replaceChildren(...[...part.childNodes].map(node => document.importNode(node, true)));
    prepare(old);
    restore(old);
    choose();
  }

  async function refresh(names) {
    names.split(',').forEach(name => waiting.add(name));
    if (busy) return;
    busy = true;
    while (waiting.size > 0) {
      const wanted = waiting.has('*') ? '*' : [...waiting].join(',');
      waiting.clear();
      const began = performance.now();
      try {
        const answer = await fetch(location.href, { headers: { 'X-Pipe-Parts': wanted }, cache: 'no-store' });
        if (answer.ok) {
          const page = new DOMParser().parseFromString(await answer.text(), 'text/html');
          all('[data-live]', page).forEach(put);
        } else {
          say(answer.status === 404 ? 'this run is gone' : 'not let in: open the printed address again', 'off');
        }
      } catch { /* The server is gone, and the listener says so. */ }
      // A page that takes long to make is asked for less often.
      await new Promise(wake => setTimeout(wake, Math.max(120, 2 * (performance.now() - began))));
    }
    busy = false;
  }

  function listen() {
    if (!query || source || document.hidden) return;
    source = new EventSource(query);
    source.onopen = () => say('live', 'on');
    source.onmessage = event => refresh(event.data === 'log' ? 'log' : '*');
    source.onerror = () => say('not connected', 'off');
  }

  // What no file tells, such as the memory of cards, is asked for while somebody looks.
  const often = document.querySelector('[data-every]');
  if (often) setInterval(() => { if (!document.hidden) refresh(often.dataset.parts); }, 1000 * often.dataset.every);

  // A browser has few connections to a server; a page that nobody sees holds none.
  document.addEventListener('visibilitychange', () => {
    if (!document.hidden) return listen();
    source?.close();
    source = null;
  });

  // Forms that show at once what they ask for.
  function show(form) {
    const address = new URL(location.href), data = new FormData(form);
    for (const { name } of form.elements) if (name && name !== 'run') address.searchParams.delete(name);
    for (const [name, value] of data) if (value && name !== 'run') address.searchParams.append(name, value);
    address.searchParams.delete('page');
    history.replaceState(null, '', address);
    refresh('*');
  }
  let typing = 0;
  document.addEventListener('input', event => {
    const form = event.target.closest('form[data-auto]');
    if (!form) return choose();
    pair(event.target);
    clearTimeout(typing);
    typing = setTimeout(() => show(form), 150);
  });
  // A slider and the number that it stands for.
  function pair(input) {
    const elements = [...input.form.elements], { sets } = input.dataset;
    const slider = elements.find(one => one.dataset.sets && one.dataset.sets === input.name);
    if (sets) elements.find(one => one.name === sets).value = input.value;
    if (slider) slider.value = input.value || 0;
  }
  document.addEventListener('submit', event => {
    const form = event.target;
    if (form.matches('form[data-auto]')) {
      event.preventDefault();
      show(form);
    } else if (form.method === 'post') {
      // A second click sends nothing.
      if (form.dataset.sent) event.preventDefault();
      form.dataset.sent = '1';
      all('button', form).forEach(button => button.setAttribute('aria-disabled', 'true'));
    }
  });

  // A picture that was chosen or dropped is shown before it is sent.
  document.addEventListener('change', event => {
    const input = event.target.closest('[data-preview]'), file = input?.files[0];
    input?.parentElement.querySelector('img')?.remove();
    if (!file) return;
    const reader = new FileReader(), image = document.createElement('img');
    image.alt = file.name;
    reader.onload = () => { image.src = reader.result; input.after(image); };
    reader.readAsDataURL(file);
  });

  function choose() {
    const button = document.querySelector('#compare button');
    if (!button) return;
    const count = all('#compare input[name=run]:checked').length;
    button.disabled = count < 2 || count > 20;
    button.textContent = count < 2 ? 'Compare the selected runs' : `Compare ${count} runs`;
  }

  // Charts.
  const tip = document.createElement('div');
  tip.id = 'tip';
  tip.hidden = true;
  document.body.append(tip);

  const numbers = (element, name) => (element.parsed ??= {})[name] ??= element.dataset[name].split(' ').map(Number);

  function scaleOf(svg) {
    const area = svg.querySelector('.scale');
    if (!area) return null;
    const at = name => Number(area.getAttribute(name));
    const [first, last] = area.dataset.x.split(' ').map(Number);
    return { first, last, left: at('x'), width: at('width'), top: at('y'), height: at('height') };
  }

  function stepAt(svg, scale, clientX, clientY) {
    const point = new DOMPoint(clientX, clientY).matrixTransform(svg.getScreenCTM().inverse());
    const share = Math.min(1, Math.max(0, (point.x - scale.left) / scale.width));
    return scale.first + share * (scale.last - scale.first);
  }

  const place = (scale, step) => scale.left + (step - scale.first) / (scale.last - scale.first || 1) * scale.width;

  function nearest(steps, step) {
    let low = 0, high = steps.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (steps[middle] < step) low = middle + 1; else high = middle;
    }
    return low > 0 && step - steps[low - 1] < steps[low] - step ? low - 1 : low;
  }

  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  function shown(svg, value) {
    if (svg.closest('figure').id !== 'figure-memory') return Number(value.toPrecision(5)).toString();
    let unit = 0;
    while (value >= 1024 && unit < 4) { value /= 1024; unit += 1; }
    return `${value.toFixed(unit && 1)} ${units[unit]}`;
  }

  const both = (svg, { value, smooth }) => shown(svg, value) + (smooth === undefined ? '' : ` (smoothed ${shown(svg, smooth)})`);

  function line(svg, scale, x) {
    let mark = svg.querySelector('.pointer');
    if (!mark) {
      mark = document.createElementNS('http://www.w3.org/2000/svg', 'path');
      mark.setAttribute('class', 'pointer');
      svg.append(mark);
    }
    mark.setAttribute('d', `M${x} ${scale.top}v${scale.height}`);
  }

  function valuesAt(svg, step) {
    const found = all('g.curve[data-steps]', svg).map(curve => {
      const steps = numbers(curve, 'steps'), at = nearest(steps, step);
      const smooth = curve.dataset.smooth ? numbers(curve, 'smooth')[at] : undefined;
      return { name: curve.dataset.name, step: steps[at], value: numbers(curve, 'values')[at], smooth, style: curve.classList[1] };
    });
    return found.filter(one => one.step !== undefined && !Number.isNaN(one.step));
  }

  function point(svg, step, clientX, clientY) {
    const scale = scaleOf(svg), found = scale && valuesAt(svg, step);
    if (!found || found.length === 0) return;
    const near = found.reduce((best, one) => Math.abs(one.step - step) < Math.abs(best.step - step) ? one : best);
    svg.pointed = near.step;
    line(svg, scale, place(scale, near.step));
    tip.replaceChildren(...[[`step ${near.step}`, ''], ...found.map(one =>
      [`${found.length > 1 ? `${one.name}${one.step === near.step ? '' : ` (${one.step})`}: ` : ''}${both(svg, one)}`, one.style])
    ].map(([text, style]) => Object.assign(document.createElement('div'), { textContent: text, className: style })));
    tip.hidden = false;
    const width = tip.offsetWidth;
    tip.style.left = `${Math.max(4, Math.min(clientX + 14, innerWidth - width - 8)) + scrollX}px`;
    tip.style.top = `${clientY + 16 + scrollY}px`;
    return [`step ${near.step}`, ...found.map(one => `${one.name} ${both(svg, one)}`)].join(', ');
  }

  function leave(svg) {
    svg?.querySelectorAll('.pointer, .chosen').forEach(mark => mark.remove());
    tip.hidden = true;
  }

  function zoom(from, to) {
    const address = new URL(location.href), form = document.querySelector('form.view');
    const range = to - from >= 1 ? { from: Math.max(0, Math.round(from)), to: Math.round(to) } : { from: '', to: '' };
    for (const [name, value] of Object.entries(range)) {
      if (value === '') address.searchParams.delete(name); else address.searchParams.set(name, value);
      if (form) form.elements[name].value = value;
    }
    history.replaceState(null, '', address);
    refresh('curves');
  }

  const chartOf = event => {
    const svg = event.target.closest?.('figure svg');
    return svg && svg.querySelector('.scale') ? svg : null;
  };
  let under = null;
  document.addEventListener('pointermove', event => {
    const svg = drag ? drag.svg : chartOf(event);
    if (under && under !== svg) leave(under);
    under = svg;
    if (!svg) return;
    const scale = scaleOf(svg), step = stepAt(svg, scale, event.clientX, event.clientY);
    point(svg, step, event.clientX, event.clientY);
    if (drag) {
      const [left, right] = [drag.step, step].map(one => place(scale, one)).sort((a, b) => a - b);
      drag.mark ??= svg.appendChild(document.createElementNS('http://www.w3.org/2000/svg', 'rect'));
      for (const [name, value] of Object.entries({ class: 'chosen', x: left, y: scale.top, width: right - left, height: scale.height })) {
        drag.mark.setAttribute(name, value);
      }
    }
  });
  document.addEventListener('pointerdown', event => {
    const svg = event.button === 0 && chartOf(event);
    if (svg) drag = { svg, x: event.clientX, step: stepAt(svg, scaleOf(svg), event.clientX, event.clientY) };
  });
  document.addEventListener('pointerup', event => {
    if (!drag) return;
    const { svg, x, step } = drag;
    drag = null;
    svg.querySelector('.chosen')?.remove();
    if (Math.abs(event.clientX - x) < 8) return;
    const other = stepAt(svg, scaleOf(svg), event.clientX, event.clientY);
    leave(svg);
    zoom(Math.min(step, other), Math.max(step, other));
  });
  document.addEventListener('pointercancel', () => { leave(drag?.svg); drag = null; });
  document.addEventListener('dblclick', event => { if (chartOf(event)) zoom(0, 0); });
  document.addEventListener('keydown', event => {
    const svg = event.target.matches?.('figure') && event.target.querySelector('svg'), scale = svg && scaleOf(svg);
    if (!scale || event.ctrlKey || event.metaKey || event.altKey) return;
    const range = scale.last - scale.first, now = svg.pointed ?? scale.first;
    const at = Math.min(scale.last, Math.max(scale.first, now));
    const moves = { ArrowLeft: -1, ArrowRight: 1 };
    if (event.key in moves) {
      const step = Math.min(scale.last, Math.max(scale.first, at + moves[event.key] * Math.max(1, range / 50)));
      const box = svg.getBoundingClientRect();
      const x = box.left + place(scale, step) / svg.viewBox.baseVal.width * box.width;
      const text = point(svg, step, x, box.top + box.height / 3);
      if (text) say(text, 'on');
    } else if (event.key === '+') {
      zoom(at - range / 4, at + range / 4);
    } else if (event.key === '-') {
      zoom(scale.first - range / 2, scale.last + range / 2);
    } else if (event.key === '0') {
      zoom(0, 0);
    } else if (event.key === 'Escape') {
      leave(svg);
    } else {
      return;
    }
    event.preventDefault();
  });

  // Parallel coordinates: a stretch of an axis selects the trials that cross it there; the other lines fade.
  const brushes = {};
  const axes = svg => all('.handle', svg).map((handle, index) => {
    const [top, height] = ['y', 'height'].map(name => Number(handle.getAttribute(name)));
    const { name, scale } = handle.dataset, [low, high] = [Number(handle.dataset.low), Number(handle.dataset.high)];
    const choices = scale === 'choices' ? JSON.parse(handle.dataset.choices) : null;
    const value = share => scale === 'log' ? low * (high / low) ** share : low + share * (high - low);
    const share = number => scale === 'log' ? Math.log(number / low) / Math.log(high / low) : (number - low) / (high - low);
    return { index, handle, name, choices, value, share, top, height, shareAt: y => (top + height - y) / height };
  });

  function brush(svg, axis, range) {
    if (axis.choices && range) {
      const count = axis.choices.length, [first, last] = range;
      range = [Math.floor(first * count + 1e-6) / count, Math.ceil(last * count - 1e-6) / count];
    }
    if (range) brushes[axis.name] = range; else delete brushes[axis.name];
    showBrushes(svg);
  }

  function showBrushes(svg) {
    all('.brushed', svg).forEach(mark => mark.remove());
    const chosen = axes(svg).filter(axis => brushes[axis.name]), near = 0.002;
    for (const { handle, name, top, height } of chosen) {
      const [first, last] = brushes[name], mark = handle.cloneNode();
      for (const key of Object.keys(mark.dataset)) delete mark.dataset[key];
      mark.setAttribute('class', 'brushed');
      mark.setAttribute('y', top + (1 - last) * height);
      mark.setAttribute('height', Math.max(1, (last - first) * height));
      handle.before(mark);
    }
    const lines = all('.line polyline', svg);
    const isChosen = line => {
      const points = line.getAttribute('points').split(' ');
      return chosen.every(({ index, name, shareAt }) => {
        const share = shareAt(Number(points[index].split(',')[1]));
        return share >= brushes[name][0] - near && share <= brushes[name][1] + near;
      });
    };
    lines.forEach(line => line.classList.toggle('faded', !isChosen(line)));
    const figure = svg.closest('figure'), count = lines.filter(line => !line.classList.contains('faded')).length;
    figure.querySelector('.selected').textContent = chosen.length ? `${count} of ${lines.length} trials selected.` : '';
    figure.querySelector('.unselect').hidden = chosen.length === 0;
    for (const axis of axes(svg)) {
      const range = brushes[axis.name], inputs = all('.ranges fieldset', figure)[axis.index].elements;
      [...inputs].forEach((input, end) => {
        if (input === document.activeElement && input.value !== '') return;
        if (!range) input.value = '';
        else if (axis.choices) input.value = Math.round(range[end] * axis.choices.length) - end;
        else input.value = Number(axis.value(range[end]).toPrecision(4));
      });
    }
  }

  // The same by the keyboard: the first and the last value of each axis.
  function ranges(svg) {
    const make = (name, more, ...children) => {
      const element = Object.assign(document.createElement(name), more);
      element.append(...children);
      return element;
    };
    const input = (axis, end) => {
      const word = ['from', 'to'][end], named = { name: `${word}-${axis.name}`, ariaLabel: `${axis.name} ${word}` };
      if (!axis.choices) return make('input', { type: 'number', step: 'any', placeholder: word, ...named });
      const options = axis.choices.map((choice, at) => make('option', { value: at }, choice));
      return make('select', named, make('option', { value: '' }, word), ...options);
    };
    const fields = axes(svg).map(axis => {
      const inputs = [input(axis, 0), input(axis, 1)], set = make('fieldset', {}, make('legend', {}, axis.name), ...inputs);
      set.addEventListener('input', () => {
        const [first, last] = inputs.map(one => one.value);
        const share = (text, end) => {
          if (text === '') return end;
          return axis.choices ? (Number(text) + end) / axis.choices.length : axis.share(Number(text));
        };
        const range = [share(first, 0), share(last, 1)].map(one => Math.min(1, Math.max(0, one)));
        brush(svg, axis, first === '' && last === '' ? null : [Math.min(...range), Math.max(...range)]);
      });
      return set;
    });
    const clear = make('button', { type: 'button', className: 'unselect', hidden: true }, 'Select all');
    clear.addEventListener('click', () => {
      Object.keys(brushes).forEach(name => delete brushes[name]);
      showBrushes(svg);
    });
    const about = make('p', { className: 'note' }, 'Drag along an axis to select trials; a click there selects all again. ',
      make('span', { className: 'selected', role: 'status' }), ' ', clear);
    const box = make('details', {}, make('summary', {}, 'Select by values'), make('div', { className: 'ranges' }, ...fields));
    svg.closest('figure').append(about, box);
    showBrushes(svg);
  }

  const heightAt = (svg, event) => new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse()).y;
  document.addEventListener('pointerdown', event => {
    const handle = event.button === 0 && event.target.closest?.('.handle');
    if (!handle) return;
    const svg = handle.ownerSVGElement, axis = axes(svg).find(one => one.handle === handle);
    brushing = { svg, axis, y: event.clientY, share: axis.shareAt(heightAt(svg, event)) };
    event.preventDefault();
  });
  document.addEventListener('pointermove', event => {
    if (!brushing || Math.abs(event.clientY - brushing.y) < 4) return;
    const { svg, axis, share } = brushing, ends = [share, axis.shareAt(heightAt(svg, event))];
    brush(svg, axis, [Math.max(0, Math.min(...ends)), Math.min(1, Math.max(...ends))]);
  });
  document.addEventListener('pointerup', event => {
    if (brushing && Math.abs(event.clientY - brushing.y) < 4) brush(brushing.svg, brushing.axis, null);
    brushing = null;
  });
  document.addEventListener('pointercancel', () => { brushing = null; });

  function prepare(from) {
    all('#figure-parallel svg', from).forEach(ranges);
    for (const figure of all('figure', from)) if (figure.querySelector('.scale')) figure.tabIndex = 0;
    choose();
  }

  // A page that comes back by the button of the browser can send its forms again.
  addEventListener('pageshow', () => all('form').forEach(form => {
    delete form.dataset.sent;
    all('button', form).forEach(button => button.removeAttribute('aria-disabled'));
  }));

  all('[data-live]').forEach(part => { seen[part.id] = part.innerHTML; });
  all('[data-follow]').forEach(log => { log.scrollTop = log.scrollHeight; });
  prepare(document);
  if (query) say('connecting', 'off');
  listen();
})();
