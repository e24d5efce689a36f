#!/usr/bin/env node
// Runs the program of this system.
import { spawn } from "node:child_process";
import { addLinuxProgram, findProgram } from "./program.mjs";

try {
  const args = await addLinuxProgram(process.argv.slice(2));
  const child = spawn(findProgram(), args, { stdio: "inherit" });
  // A terminal sends Ctrl-C to both, and a second one would end the program at once.
  process.on("SIGINT", () => process.stdin.isTTY || child.kill("SIGINT"));
  for (const signal of ["SIGTERM", "SIGHUP"]) process.on(signal, () => child.kill(signal));
  child.on("error", fail);
  child.on("close", (code, signal) => (signal ? process.exit(1) : process.exit(code)));
} catch (error) {
  fail(error);
}

function fail(error) {
  console.error(`turnwheel: ${error.message}`);
  process.exit(1);
}
