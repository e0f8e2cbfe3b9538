// The filter language of tables: words, comparisons, `and`, `or`, `not` and parentheses.
//
//   down                          any column contains the word
//   service = web and flows > 100
//   not (state = up) or reason ~ timeout
//
// `=` compares whole values, `~` looks for a part; numbers may end in k, M or G.

export type Row = Record<string, unknown>;
export type Filter = { matches: (row: Row) => boolean; error?: { text: string; at: number } };

type Token = { text: string; at: number; quoted: boolean };
type Test = (row: Row) => boolean;

const OPERATORS = ["!=", ">=", "<=", "=", "~", ">", "<", "(", ")"];
const DEPTH_MAX = 50;

class Wrong extends Error {
  constructor(message: string, public at: number) { super(message); }
}

function tokens(text: string): Token[] {
  const found: Token[] = [];
  let at = 0;
  while (at < text.length) {
    const rest = text.slice(at);
    const space = /^\s+/.exec(rest);
    if (space) { at += space[0].length; continue; }
    if (rest[0] === '"') {
      const end = text.indexOf('"', at + 1);
      if (end < 0) throw new Wrong("this quotation mark is not closed", at);
      found.push({ text: text.slice(at + 1, end), at, quoted: true });
      at = end + 1;
      continue;
    }
    const operator = OPERATORS.find(one => rest.startsWith(one));
    const word = operator ?? /^[^\s()=~<>!"]+/.exec(rest)?.[0];
    if (word === undefined) throw new Wrong(`\`${rest[0]}\` is not expected here`, at);
    found.push({ text: word, at, quoted: false });
    at += word.length;
  }
  return found;
}

const SCALES: Record<string, number> = { k: 1e3, M: 1e6, G: 1e9 };

export function numberOf(text: string): number | undefined {
  const match = /^(-?\d+(?:\.\d+)?)([kMG]?)$/.exec(text);
  return match ? Number(match[1]) * (SCALES[match[2]] ?? 1) : undefined;
}

const asText = (value: unknown) =>
  value === null || value === undefined ? "" : String(value).toLowerCase();

export function parse(text: string, columns: string[]): Filter {
  if (text.trim() === "") return { matches: () => true };
  try {
    const all = tokens(text);
    let next = 0;
    let depth = 0;
    const peek = () => all[next];
    const isWord = (word: string) => !!peek() && !peek().quoted && peek().text.toLowerCase() === word;
    const either = (): Test => {
      let left = both();
      while (isWord("or")) { next++; const [a, b] = [left, both()]; left = row => a(row) || b(row); }
      return left;
    };
    const both = (): Test => {
      let left = not();
      while (peek() && !isWord("or") && !isWord(")")) {
        if (isWord("and")) next++;
        const [a, b] = [left, not()];
        left = row => a(row) && b(row);
      }
      return left;
    };
    const not = (): Test => {
      if (++depth > DEPTH_MAX) throw new Wrong("this is nested too deeply", peek()?.at ?? text.length);
      try {
        if (!isWord("not")) return one();
        next++;
        const inner = not();
        return row => !inner(row);
      } finally {
        depth--;
      }
    };
    const one = (): Test => {
      const token = all[next++];
      if (!token) throw new Wrong("a word or a comparison is missing here", text.length);
      if (!token.quoted && token.text === "(") {
        const inner = either();
        if (!isWord(")")) throw new Wrong("`)` is missing", peek()?.at ?? text.length);
        next++;
        return inner;
      }
      if (!token.quoted && (OPERATORS.includes(token.text) || ["and", "or"].includes(token.text.toLowerCase())))
        throw new Wrong(`\`${token.text}\` needs something in front of it`, token.at);
      const operator = peek();
      const compares = operator && !operator.quoted && OPERATORS.slice(0, 7).includes(operator.text);
      if (!compares) {
        const word = token.text.toLowerCase();
        return row => columns.some(column => asText(row[column]).includes(word));
      }
      if (!columns.includes(token.text))
        throw new Wrong(`there is no column \`${token.text}\`: ${columns.join(", ")}`, token.at);
      next++;
      const value = all[next++];
      if (!value || (!value.quoted && OPERATORS.includes(value.text)))
        throw new Wrong("a value is missing here", value?.at ?? text.length);
      return comparison(token.text, operator.text, value);
    };
    const test = either();
    if (peek()) throw new Wrong(`\`${peek().text}\` is not expected here`, peek().at);
    return { matches: test };
  } catch (why) {
    if (!(why instanceof Wrong)) throw why;
    return { matches: () => true, error: { text: why.message, at: why.at } };
  }
}

function comparison(column: string, operator: string, value: Token): Test {
  const [text, number] = [value.text.toLowerCase(), numberOf(value.text)];
  if (operator === "=") return row => asText(row[column]) === text || (number !== undefined && row[column] === number);
  if (operator === "!=") return row => asText(row[column]) !== text && !(number !== undefined && row[column] === number);
  if (operator === "~") return row => asText(row[column]).includes(text);
  if (number === undefined) throw new Wrong(`\`${value.text}\` is not a number`, value.at);
  const compare: Record<string, (a: number) => boolean> = {
    ">": a => a > number, "<": a => a < number, ">=": a => a >= number, "<=": a => a <= number,
  };
  return row => typeof row[column] === "number" && compare[operator](row[column] as number);
}
