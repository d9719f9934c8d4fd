// SPDX-License-Identifier: BSD-3-Clause
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "bridge/server/catalogue.hpp"
#include "tests/unit/server/catalogue_fixture.hpp"

namespace catalogue_displaced_test {

using namespace rnbd;
using namespace rnbd::test;

namespace {

/// An export "disk" of a link to a file, and another file.
struct Linked {
  Linked() {
    fs::create_symlink(first.path, link);
    REQUIRE(failure_of(catalogue, {"disk", link, "", false, false}).empty());
  }
  ~Linked() { fs::remove(link); }

  void lead_to(const std::string& path) const {
    fs::remove(link);
    if (!path.empty()) fs::create_symlink(path, link);
  }
  std::string displaced() {
    catalogue.look_at_paths();
    return catalogue.exports().at(0).displaced;
  }
  std::optional<Lease> open() {
    if (catalogue.is_stale("disk")) catalogue.renew("disk");
    auto lease = catalogue.open_named("disk", wire::AccessMode::read_write);
    return lease ? std::optional<Lease>{std::move(*lease)} : std::nullopt;
  }

  TempFile first, second;
  std::string link = first.path + ".link";
  ExportCatalogue catalogue{{}};
};

}  // namespace

TEST_CASE("displaced: a path that leads to another file is told while the old one is in use") {
  Linked disk;
  std::ofstream{disk.second.path} << std::string(8192, 'y');
  const auto writer = disk.open();
  REQUIRE(writer);
  CHECK(disk.displaced().empty());
  disk.lead_to(disk.second.path);
  CHECK(has(disk.displaced(), disk.link + " leads to other storage now"));
  CHECK(writer->geometry().size == 4096);
  disk.lead_to("");
  CHECK(has(disk.displaced(), "leads nowhere now"));
  disk.lead_to(disk.first.path);
  CHECK(disk.displaced().empty());
}

TEST_CASE("displaced: with the last client the next one gets what the path leads to") {
  Linked disk;
  std::ofstream{disk.second.path} << std::string(8192, 'y');
  {
    const auto writer = disk.open();
    disk.lead_to(disk.second.path);
    CHECK_FALSE(disk.displaced().empty());
    CHECK_FALSE(disk.catalogue.is_stale("disk"));
  }
  CHECK(disk.displaced().empty());
  CHECK(disk.open()->geometry().size == 8192);
  CHECK(disk.displaced().empty());
}

TEST_CASE("displaced: storage that works is served on while its path leads nowhere") {
  Linked disk;
  disk.lead_to("");
  CHECK(has(disk.displaced(), "leads nowhere now"));
  CHECK(disk.open()->geometry().size == 4096);
  CHECK(has(disk.displaced(), "leads nowhere now"));
}

TEST_CASE("displaced: a file without a name is told at once, and how it lost it after a look") {
  Linked disk;
  const auto writer = disk.open();
  fs::remove(disk.first.path);
  CHECK(has(disk.catalogue.exports().at(0).displaced, "was deleted or replaced; "));
  CHECK(has(disk.displaced(), " was deleted; "));
  disk.lead_to(disk.second.path);
  CHECK(has(disk.displaced(), " was replaced; "));
}

TEST_CASE("displaced: another name, and other permissions, are no trouble") {
  Linked disk;
  const auto writer = disk.open();
  const std::string other = disk.first.path + ".other";
  fs::create_hard_link(disk.first.path, other);
  fs::permissions(disk.first.path, fs::perms::owner_read);
  CHECK(disk.displaced().empty());
  fs::remove(other);
}

TEST_CASE("displaced: each look takes a thousand of those that nobody has open, in turn") {
  constexpr std::size_t kFiles = 1'100;
  std::vector<TempFile> files(kFiles);
  ExportCatalogue catalogue{{}};
  for (std::size_t i = 0; i < kFiles; ++i) {
    REQUIRE(failure_of(catalogue, {"disk" + std::to_string(i), files[i].path, ""}).empty());
  }
  const auto seen = [&] {
    const auto all = catalogue.exports();
    return std::ranges::count_if(all, [](const auto& status) { return status.space.has_value(); });
  };
  CHECK(catalogue.look_at_paths().empty());
  CHECK(seen() == 1'000);
  CHECK(catalogue.look_at_paths().empty());
  CHECK(seen() == kFiles);
  for (const TempFile& file : files) fs::remove(file.path);
  // Those that are displaced are looked at each time.
  CHECK(catalogue.look_at_paths().size() == 1'000);
  CHECK(catalogue.look_at_paths().size() == kFiles);
}

TEST_CASE("displaced: a deleted file of the search path is told while a client has it open") {
  TempFile file;
  const fs::path path{file.path};
  ExportCatalogue catalogue{{}};
  REQUIRE(catalogue.files().set(path.parent_path().string()).has_value());
  {
    const auto writer =
        catalogue.files().open("client", path.filename().string(), wire::AccessMode::read_write);
    REQUIRE(writer.has_value());
    CHECK(catalogue.displaced_files().empty());
    fs::remove(path);
    const auto files = catalogue.displaced_files();
    REQUIRE(files.size() == 1);
    CHECK(files[0].name == path.filename().string());
    CHECK(files[0].size == 4096);
  }
  CHECK(catalogue.displaced_files().empty());
}

}  // namespace catalogue_displaced_test
