// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/catalogue.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "tests/unit/server/catalogue_fixture.hpp"

namespace catalogue_test {

using namespace rnbd;
using namespace rnbd::test;

TEST_CASE("catalogue: bad names are refused with the reason") {
  Fakes fakes;
  const auto text = [&](const std::string& name) {
    return failure_of(fakes.catalogue, {name, "memory:1M", "", false, false});
  };
  CHECK(has(text(""), "is empty"));
  CHECK(has(text(std::string(255, 'x')), "255 bytes"));
  CHECK(text(std::string(254, 'x')).empty());
  CHECK(has(text("new\nline"), "control character"));
  CHECK(has(text("a/../b"), "component"));
  CHECK(has(text("/"), "component"));
  CHECK(text("dev/sdb").empty());
  CHECK(has(text("dev/sdb"), "twice"));
  CHECK(fakes.opened.size() == 2);
}

TEST_CASE("catalogue: a description that could not be listed is refused") {
  Fakes fakes;
  const auto text = [&](const std::string& name, const std::string& description) {
    return failure_of(fakes.catalogue, {name, "memory:1M", description, false, false});
  };
  CHECK(has(text("a", std::string(1025, 'x')), "at most 1024"));
  CHECK(has(text("a", "bell\a"), "control character"));
  CHECK(text("a", std::string(1024, 'x')).empty());
  CHECK(text("b", "two\nlines,\tübung").empty());
}

TEST_CASE("catalogue: an empty backend is an export of no sectors") {
  Fakes fakes;
  fakes.size = 0;
  CHECK(failure_of(fakes.catalogue, {"disk0", "x:", "", false, false}).empty());
  const auto lease = fakes.catalogue.open_named("disk0", wire::AccessMode::read_write);
  REQUIRE(lease);
  CHECK(lease->geometry().sectors == 0);
}

TEST_CASE("catalogue: options of the export reach the backend") {
  Fakes fakes;
  CHECK(failure_of(fakes.catalogue, {"a", "x:", "", true, true}).empty());
  CHECK(fakes.opened[0].second.read_only);
  CHECK(fakes.opened[0].second.direct);
  CHECK(fakes.opened[0].second.lock);
  CHECK(failure_of(fakes.catalogue, {"b", "x:", "", false, false}).empty());
  CHECK_FALSE(fakes.opened[1].second.read_only);
  CHECK_FALSE(fakes.opened[1].second.direct);
}

TEST_CASE("catalogue: two exports of one file share it, and its one writer") {
  TempFile file;
  Fakes fakes;
  CHECK(failure_of(fakes.catalogue, {"rw", file.path, "", false, false}).empty());
  CHECK(failure_of(fakes.catalogue, {"too", file.path, "", false, false}).empty());
  CHECK(failure_of(fakes.catalogue, {"ro", file.path, "", true, false}).empty());
  CHECK(fakes.opened.size() == 1);
  const auto writer = fakes.catalogue.open_named("rw", wire::AccessMode::read_write);
  REQUIRE(writer.has_value());
  CHECK(fakes.catalogue.open_named("too", wire::AccessMode::read_write).error() == EPERM);
  CHECK(fakes.catalogue.open_named("ro", wire::AccessMode::read_write).error() == EROFS);
  const auto reader = fakes.catalogue.open_named("ro", wire::AccessMode::read_only);
  REQUIRE(reader.has_value());
  CHECK(reader->geometry().read_only);
  CHECK_FALSE(writer->geometry().read_only);
}

TEST_CASE("catalogue: what begins like a kind of storage is a file only with file:") {
  Fakes fakes;
  const TempFile file;
  REQUIRE(fakes.catalogue.add({"one", "file:" + file.path, "", false, false}));
  REQUIRE(fakes.catalogue.add({"two", file.path, "", false, false}));
  CHECK(fakes.opened.size() == 1);

  const fs::path before = fs::current_path();
  fs::current_path(fs::temp_directory_path());
  const std::string odd = "null:" + std::to_string(::getpid());
  std::ofstream{odd} << 'x';
  CHECK(fakes.catalogue.add({"three", odd, "", false, false}));
  CHECK(fakes.catalogue.add({"four", odd, "", false, false}));
  fs::remove(odd);
  fs::current_path(before);
  CHECK(fakes.opened.size() == 3);
}

TEST_CASE("catalogue: a writable export behind a read-only one of the same file says what to do") {
  TempFile file;
  Fakes fakes;
  CHECK(failure_of(fakes.catalogue, {"ro", file.path, "", true, false}).empty());
  CHECK(has(failure_of(fakes.catalogue, {"rw", file.path, "", false, false}), "before"));
  CHECK(failure_of(fakes.catalogue, {"ro2", file.path, "", true, false}).empty());
}

TEST_CASE("catalogue: two memory exports of the same size are two disks") {
  Fakes fakes;
  CHECK(failure_of(fakes.catalogue, {"a", "memory:1M", "", false, false}).empty());
  CHECK(failure_of(fakes.catalogue, {"b", "memory:1M", "", false, false}).empty());
  const auto a = fakes.catalogue.open_named("a", wire::AccessMode::read_write);
  CHECK(fakes.catalogue.open_named("b", wire::AccessMode::read_write).has_value());
}

TEST_CASE("catalogue: a file with a name of its own is shared with the search path") {
  TempFile file;
  Fakes fakes;
  CHECK(failure_of(fakes.catalogue, {"disk", file.path, "", false, false}).empty());
  const fs::path path{file.path};
  REQUIRE(fakes.catalogue.files().set(path.parent_path().string()).has_value());
  const auto writer = fakes.catalogue.open_named("disk", wire::AccessMode::read_write);
  const auto other = fakes.catalogue.files().open("client", path.filename().string(),
                                                  wire::AccessMode::read_write);
  CHECK(other.error().error == EPERM);
  CHECK(fakes.opened.size() == 1);
}

TEST_CASE("catalogue: real storage is opened by its specification") {
  TempFile file;
  ExportCatalogue catalogue{{}};
  CHECK(failure_of(catalogue, {"file", file.path, "", false, false}).empty());
  CHECK(failure_of(catalogue, {"memory", "memory:64M", "", false, false}).empty());
  CHECK(catalogue.exports().at(0).size == 4096);
  CHECK(catalogue.exports().at(1).size == 64 << 20);
  fs::resize_file(file.path, 8192);
  CHECK(catalogue.exports().at(0).size == 8192);
  CHECK(failure_of(catalogue, {"missing", file.path + ".not", "", false, false}).empty());
  CHECK(has(catalogue.exports().at(2).trouble, file.path + ".not: there is no such file"));
  const auto directory = failure_of(catalogue, {"directory", "/tmp", "", false, false});
  CHECK(has(directory, "'directory'"));
  CHECK(has(directory, "it is a directory"));
}

namespace {

/// The storage behind the name, as its users see it.
std::uint64_t size_of(ExportCatalogue& catalogue) {
  if (catalogue.is_stale("disk")) catalogue.renew("disk");
  const auto lease = catalogue.open_named("disk", wire::AccessMode::read_write);
  return lease ? lease->geometry().size : 0;
}

}  // namespace

TEST_CASE("catalogue: what comes back under the name is served once nobody has the old one open") {
  const TempFile file;
  std::vector<std::string> log;
  ExportCatalogue catalogue{
      {.log = [&](rtrs::LogLevel, const std::string& line) { log.push_back(line); }}};
  REQUIRE(failure_of(catalogue, {"disk", file.path, "", false, false}).empty());
  {
    const auto reader = catalogue.open_named("disk", wire::AccessMode::read_only);
    fs::remove(file.path);
    std::ofstream{file.path} << std::string(8192, 'y');
    CHECK_FALSE(catalogue.is_stale("disk"));
    CHECK(size_of(catalogue) == 4096);
  }
  CHECK(catalogue.is_stale("disk"));
  CHECK(size_of(catalogue) == 8192);
  CHECK_FALSE(catalogue.is_stale("disk"));
  CHECK(has(log.back(), "its storage is another one now"));
}

TEST_CASE("catalogue: a deleted file that nothing has replaced is served on") {
  const TempFile file;
  ExportCatalogue catalogue{{}};
  REQUIRE(failure_of(catalogue, {"disk", file.path, "", false, false}).empty());
  fs::remove(file.path);
  CHECK(size_of(catalogue) == 4096);
  CHECK(size_of(catalogue) == 4096);
}

TEST_CASE("catalogue: a device that is gone is let go, says so, and is opened when it is back") {
  struct Device final : Backend {
    Device(std::uint64_t size, Whereabouts& where) : where_{where} { info_.size = size; }
    const BackendInfo& info() const override { return info_; }
    Whereabouts whereabouts() const override { return where_; }
    std::unique_ptr<BackendQueue> open_queue(rtrs::Reactor*) override { return nullptr; }
    BackendInfo info_;
    Whereabouts& where_;
  };
  Whereabouts where = Whereabouts::named;
  std::uint64_t size = 4096;
  ExportCatalogue catalogue{
      {.open = [&](const std::string&,
                   const BackendOptions&) -> tl::expected<std::unique_ptr<Backend>, Failure> {
        if (size == 0) return tl::unexpected(Failure{ENXIO, "there is no device"});
        return std::make_unique<Device>(size, where);
      }}};
  REQUIRE(failure_of(catalogue, {"disk", "x:", "", false, false}).empty());
  where = Whereabouts::gone;
  size = 0;
  CHECK(size_of(catalogue) == 0);
  CHECK(catalogue.trouble_of("disk") == "there is no device");
  CHECK(catalogue.exports().front().trouble == "there is no device");
  CHECK(catalogue.open_named("disk", wire::AccessMode::read_only).error() == EAGAIN);
  where = Whereabouts::named;
  size = 8192;
  CHECK(size_of(catalogue) == 8192);
  CHECK(catalogue.exports().front().trouble.empty());
}

}  // namespace catalogue_test
