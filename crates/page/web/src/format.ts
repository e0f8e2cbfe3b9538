// Numbers and times for people.

export function count(value: unknown): string {
  if (typeof value !== "number") return value === null || value === undefined ? "–" : String(value);
  return value.toLocaleString("en", { maximumFractionDigits: 1 });
}

const UNITS = ["", "k", "M", "G", "T", "P"];

export function short(value: unknown, unit = ""): string {
  if (typeof value !== "number" || !Number.isFinite(value)) return "–";
  let [scaled, at] = [Math.abs(value), 0];
  while (scaled >= 999.5 && at < UNITS.length - 1) { scaled /= 1000; at++; }
  const digits = scaled === 0 || scaled >= 99.95 || (at === 0 && Number.isInteger(scaled)) ? 0 : scaled >= 9.995 ? 1 : 2;
  const sign = value < 0 ? "−" : "";
  const prefix = `${UNITS[at]}${unit}`;
  return `${sign}${scaled.toFixed(digits)}${prefix ? ` ${prefix}` : ""}`;
}

export function span(seconds: number): string {
  const s = Math.max(0, Math.floor(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86_400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86_400)} d ${Math.floor((s % 86_400) / 3600)} h`;
}

export const clock = (ms: number) => new Date(ms).toLocaleTimeString("en-GB");

export const percent = (share: number) => `${(100 * share).toFixed(share >= 0.0995 || share === 0 ? 0 : 1)} %`;
