// Finds the program of this system, and for packages that of Azure's system.
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, renameSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { homedir } from "node:os";
import { join } from "node:path";

const require = createRequire(import.meta.url);
const { version } = JSON.parse(readFileSync(new URL("package.json", import.meta.url), "utf8"));
const LINUX = "linux-x64";

/** The program of this system. */
export function findProgram(system = `${process.platform}-${process.arch}`) {
  const file = system.startsWith("win32") ? "turnwheel.exe" : "turnwheel";
  try {
    return require.resolve(`@turnwheel/${system}/bin/${file}`);
  } catch {
    throw new Error(`there is no program for ${system}: install without --omit=optional, or build it from the repository`);
  }
}

/** `package` needs the program for Linux: on other systems it is loaded from the registry once. */
export async function addLinuxProgram(args, system = `${process.platform}-${process.arch}`) {
  const isGiven = args.some((arg) => arg === "--binary" || arg.startsWith("--binary=") || arg === "--help" || arg === "-h");
  if (args[0] !== "package" || isGiven || system === LINUX) return args;
  const cache = process.env.XDG_CACHE_HOME ?? join(homedir(), ".cache");
  const folder = join(cache, "turnwheel", version);
  const program = join(folder, "package", "bin", "turnwheel");
  if (!existsSync(program)) loadLinuxProgram(folder);
  return [...args, "--binary", program];
}

function loadLinuxProgram(folder) {
  // A mirror, or an archive without a registry.
  const source = process.env.TURNWHEEL_LINUX_PACKAGE ?? `@turnwheel/${LINUX}@${version}`;
  console.error(`turnwheel: loads ${source}, the program for Azure`);
  mkdirSync(join(folder, ".."), { recursive: true });
  const staging = mkdtempSync(`${folder}-`);
  const npm = process.platform === "win32" ? "npm.cmd" : "npm";
  const options = { cwd: staging, encoding: "utf8", shell: process.platform === "win32" };
  const archive = execFileSync(npm, ["pack", "--silent", source], options).trim().split("\n").at(-1);
  execFileSync("tar", ["-xzf", archive], { cwd: staging });
  rmSync(join(staging, archive));
  rmSync(folder, { recursive: true, force: true });
  renameSync(staging, folder);
}
