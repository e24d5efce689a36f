#!/usr/bin/env bash
# Generates clients from the OpenAPI documents of `turnwheel dev`, and runs a conversation with each: upload,
# approval, stream and download. Requires Python 3.10, Go 1.24, and Java 17 with Maven. The argument is the program.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

program=$(realpath "$1")
sources=$PWD/tests/clients
work=$(mktemp -d)
"$program" dev --port 0 --data "$work/data" >"$work/dev.log" 2>&1 &
dev=$!
trap 'kill "$dev" 2>/dev/null || true; rm -rf "$work"' EXIT
for _ in $(seq 100); do
  url=$(sed -n 's/.*Turnwheel is at \(http[^ ]*\).*/\1/p' "$work/dev.log")
  [ -n "$url" ] && break
  sleep 0.2
done
if [ -z "$url" ]; then
  cat "$work/dev.log"
  exit 1
fi
curl -sSf "$url/api/openapi.json" -o "$work/openapi.json"
curl -sSf "$url/api/openapi-3.0.json" -o "$work/openapi-3.0.json"

python_client() {
  python3 -m venv "$work/venv"
  "$work/venv/bin/pip" install --quiet openapi-python-client==0.29.1
  "$work/venv/bin/openapi-python-client" generate --path "$work/openapi.json" \
    --config "$sources/python/generator.yaml" --output-path "$work/python" >"$work/python.log" 2>&1
  PYTHONPATH=$work/python "$work/venv/bin/python" "$sources/python/conversation.py" "$url"
}

go_client() {
  cp -r "$sources/go" "$work/go"
  cd "$work/go"
  go run github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen@v2.5.1 \
    -generate types,client,skip-prune -package main -o turnwheel.go ../openapi-3.0.json
  go build -o conversation .
  ./conversation "$url"
}

java_client() {
  mkdir "$work/java"
  cd "$work/java"
  mvn -q dependency:copy -Dartifact=org.openapitools:openapi-generator-cli:7.14.0 -DoutputDirectory=. >&2
  java -jar openapi-generator-cli-7.14.0.jar generate -i ../openapi-3.0.json -g java --library native -o client \
    --additional-properties=openApiNullable=false,invokerPackage=turnwheel,apiPackage=turnwheel.api,modelPackage=turnwheel.model \
    >generate.log 2>&1
  mvn -q -f client compile dependency:build-classpath -Dmdep.outputFile=classpath.txt >&2
  path="client/target/classes:$(cat client/classpath.txt)"
  javac -proc:none -cp "$path" -d built "$sources/java/Conversation.java"
  java -cp "built:$path" Conversation "$url"
}

for language in python go java; do
  printf '== %s\n' "$language"
  result=$("${language}_client")
  printf '%s\n' "$result"
  python3 - "$result" <<'PYTHON'
import json, sys

result = json.loads(sys.argv[1])
assert result.pop("text").startswith("Paid 250 to Ada."), sys.argv[1]
assert result == {"amount": 250, "state": "completed", "file": "Invoice 1: 250 to Ada"}, sys.argv[1]
PYTHON
done
printf '3 passed, 0 failed\n'
