// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/server/served_exports.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <vector>

namespace rnbd::served_exports_test {
namespace {

namespace fs = std::filesystem;

constexpr wire::Uuid kOne{1}, kOther{2};

/// A directory, and the lines of all its processes.
struct Kept {
  Kept() {
    std::string name = (fs::temp_directory_path() / "rnbd-served-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    root = name;
  }
  ~Kept() { fs::remove_all(root); }
  std::shared_ptr<ServedExports> process() {
    auto opened = ServedExports::open(
        root / "exports", [this](rtrs::LogLevel, const auto& line) { lines.push_back(line); });
    REQUIRE(opened);
    return *opened;
  }
  fs::path root;
  std::vector<std::string> lines;
};

TEST_CASE("served: the next process tells of other storage at the same path, once") {
  Kept kept;
  kept.process()->serve("disk0", "/srv/a", kOne);
  kept.process()->serve("disk0", "/srv/a", kOne);
  CHECK(kept.lines.empty());
  kept.process()->serve("disk0", "/srv/a", kOther);
  REQUIRE(kept.lines.size() == 1);
  CHECK(kept.lines[0].starts_with(
      "export 'disk0': /srv/a is other storage than before this start: "
      "02000000-0000-0000-0000-000000000000, which was 01000000-0000-0000-0000-000000000000; "));
  kept.process()->serve("disk0", "/srv/a", kOther);
  CHECK(kept.lines.size() == 1);
}

TEST_CASE("served: another path, another name and the same process are no news") {
  Kept kept;
  kept.process()->serve("disk0", "/srv/a", kOne);
  kept.process()->serve("disk0", "/srv/b", kOther);
  const auto process = kept.process();
  process->serve("disk1", "/srv/b", kOne);
  process->serve("disk1", "/srv/b", kOther);
  kept.process()->serve("disk1", "/srv/b", kOther);
  CHECK(kept.lines.empty());
}

TEST_CASE("served: a damaged record is no news, and a link is not followed") {
  Kept kept;
  kept.process()->serve("disk0", "/srv/a", kOne);
  fs::path file;
  for (const auto& each : fs::directory_iterator{kept.root / "exports"}) file = each.path();
  std::ofstream{file} << "x";
  kept.process()->serve("disk0", "/srv/a", kOther);
  CHECK(kept.lines.empty());
  std::ofstream{kept.root / "outside"} << "precious";
  fs::remove(file);
  fs::create_symlink(kept.root / "outside", file);
  kept.process()->serve("disk0", "/srv/a", kOne);
  CHECK(kept.lines.empty());
  CHECK(fs::file_size(kept.root / "outside") == 8);
  CHECK_FALSE(fs::is_symlink(file));
}

TEST_CASE("served: where nothing can be recorded it says so") {
  Kept kept;
  const auto process = kept.process();
  fs::remove_all(kept.root / "exports");
  process->serve("disk0", "/srv/a", kOne);
  REQUIRE(kept.lines.size() == 1);
  CHECK(kept.lines[0].find("cannot record its storage") != std::string::npos);
}

}  // namespace
}  // namespace rnbd::served_exports_test
