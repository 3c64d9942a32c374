#!/bin/sh
# Installs Debian's chromium where it is missing and may be installed, and says what it did. Never fails: tests skip without it.
set -u
for name in chromium chromium-browser google-chrome google-chrome-stable; do
    command -v "$name" >/dev/null 2>&1 && exit 0
done
if ! command -v apt-get >/dev/null 2>&1 || [ "$(id -u)" != 0 ]; then
    echo "no Chromium here, and only root may install Debian's: tests that need it are skipped"
    exit 0
fi
echo "installing Debian's chromium"
export DEBIAN_FRONTEND=noninteractive
{ timeout 120 apt-get update -qq && timeout 600 apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; } >/dev/null 2>&1 ||
    echo "apt-get can't install chromium: tests that need it are skipped"
exit 0
