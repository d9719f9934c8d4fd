// SPDX-License-Identifier: BSD-3-Clause
// Exports whose storage is not there when they are added, or that somebody else has.
#include <doctest/doctest.h>

#include <cerrno>
#include <map>

#include "tests/unit/server/catalogue_fixture.hpp"

namespace waiting_export_test {

using namespace rnbd;
using namespace rnbd::test;

namespace {

constexpr auto kReadWrite = wire::AccessMode::read_write;
constexpr auto kReadOnly = wire::AccessMode::read_only;

/// Storage that is opened, or not, as the test says.
struct Openings {
  std::map<std::string, int> errors;  ///< by specification
  std::size_t opened = 0;
  ExportCatalogue catalogue{
      {.open = [this](const std::string& storage, const BackendOptions& options)
           -> tl::expected<std::unique_ptr<Backend>, Failure> {
        const int error = errors[storage];
        if (error != 0) {
          return tl::unexpected(Failure{error, error == EBUSY ? "in use" : "other trouble"});
        }
        ++opened;
        auto backend = std::make_unique<FakeBackend>(4096);
        backend->info_.read_only = options.read_only;
        return backend;
      }}};

  std::string add(const std::string& name, const std::string& storage, bool read_only = false) {
    return failure_of(catalogue, {name, storage, "", read_only, false});
  }
  int open(const char* name, wire::AccessMode mode = kReadWrite) {
    const auto lease = catalogue.open_named(name, mode);
    return lease ? 0 : lease.error();
  }
  std::string trouble(std::size_t at) { return catalogue.exports().at(at).trouble; }
};

}  // namespace

TEST_CASE("waiting: what is in use when it is added keeps nothing else from being served") {
  Openings openings;
  openings.errors["fake:a"] = EBUSY;
  CHECK(openings.add("a", "fake:a", true).empty());
  CHECK(openings.add("b", "fake:b").empty());
  CHECK(has(openings.add("a", "fake:b"), "twice"));
  CHECK(openings.catalogue.waits());
  CHECK(openings.catalogue.has("a"));
  CHECK(openings.catalogue.list().size() == 2);
  CHECK(openings.open("a") == EBUSY);
  CHECK(openings.open("a", kReadOnly) == EBUSY);
  CHECK(openings.open("b") == 0);
  CHECK(openings.trouble(0) == "in use");
  CHECK(openings.catalogue.exports().at(0).read_only);
  CHECK(openings.trouble(1).empty());

  CHECK_FALSE(openings.catalogue.open_waiting());
  CHECK(openings.open("a") == EBUSY);

  openings.errors["fake:a"] = 0;
  CHECK(openings.catalogue.open_waiting());
  CHECK_FALSE(openings.catalogue.waits());
  CHECK(openings.open("a", kReadOnly) == 0);
  CHECK(openings.open("a") == EROFS);
  CHECK(openings.trouble(0).empty());
  CHECK(openings.catalogue.exports().at(0).size == 4096);
  CHECK_FALSE(openings.catalogue.open_waiting());
}

TEST_CASE("waiting: an NBD server that does not answer may have another client") {
  Openings openings;
  openings.errors["fake:a"] = ETIMEDOUT;
  CHECK(openings.add("a", "fake:a").empty());
  CHECK(openings.open("a") == EBUSY);
}

TEST_CASE("waiting: what was asked for wrongly does not get better by itself") {
  for (const int error : {EINVAL, EISDIR, EEXIST, ENAMETOOLONG, EOPNOTSUPP}) {
    Openings openings;
    openings.errors["fake:a"] = error;
    CHECK(has(openings.add("a", "fake:a"), "export 'a': other trouble"));
    CHECK_FALSE(openings.catalogue.has("a"));
    CHECK_FALSE(openings.catalogue.waits());
  }
}

TEST_CASE("waiting: what is not there, or not allowed, may come, and is not busy until then") {
  for (const int error : {ENOENT, ENOTDIR, EACCES, EPERM, EROFS, ENXIO, ENODEV, ENOMEDIUM, EIO,
                          ESTALE, ECONNREFUSED, EHOSTUNREACH, ENOMEM}) {
    CAPTURE(error);
    Openings openings;
    openings.errors["fake:a"] = error;
    CHECK(openings.add("a", "fake:a").empty());
    CHECK(openings.open("a") == EAGAIN);
    CHECK(openings.open("a", kReadOnly) == EAGAIN);
    CHECK(openings.trouble(0) == "other trouble");
    CHECK_FALSE(openings.catalogue.exports().at(0).in_use);
    openings.errors["fake:a"] = 0;
    CHECK(openings.catalogue.open_waiting());
    CHECK(openings.open("a") == 0);
  }
}

TEST_CASE("waiting: a search path that is not there yet, and then is") {
  const TempFile file;
  const fs::path directory{file.path + ".d"};
  ExportCatalogue catalogue{{}};
  REQUIRE(catalogue.files().set(directory.string()).has_value());
  CHECK(catalogue.files().are_served());
  CHECK(catalogue.waits());
  CHECK(has(catalogue.files().trouble(), "No such file"));
  CHECK(catalogue.files().open("client", "disk", kReadOnly).error().error == EAGAIN);
  CHECK_FALSE(catalogue.open_waiting());
  fs::create_directory(directory);
  fs::copy(file.path, directory / "disk");
  CHECK(catalogue.open_waiting());
  CHECK_FALSE(catalogue.waits());
  CHECK(catalogue.files().trouble().empty());
  CHECK(catalogue.files().open("client", "disk", kReadOnly).has_value());
  fs::remove_all(directory);
}

TEST_CASE("waiting: it goes on when the trouble becomes another one, which is told") {
  Openings openings;
  openings.errors["fake:a"] = EBUSY;
  CHECK(openings.add("a", "fake:a").empty());
  openings.errors["fake:a"] = ENOENT;
  CHECK(openings.catalogue.open_waiting());
  CHECK(openings.trouble(0) == "other trouble");
  CHECK(openings.open("a") == EAGAIN);
  CHECK_FALSE(openings.catalogue.open_waiting());
  openings.errors["fake:a"] = 0;
  CHECK(openings.catalogue.open_waiting());
  CHECK(openings.open("a") == 0);
}

TEST_CASE("waiting: one of several that becomes free") {
  Openings openings;
  for (const char* name : {"a", "b", "c"}) {
    openings.errors[std::string{"fake:"} + name] = EBUSY;
    CHECK(openings.add(name, std::string{"fake:"} + name).empty());
  }
  openings.errors["fake:b"] = 0;
  CHECK(openings.catalogue.open_waiting());
  CHECK(openings.open("a") == EBUSY);
  CHECK(openings.open("b") == 0);
  CHECK(openings.open("c") == EBUSY);
  CHECK(openings.catalogue.waits());
}

TEST_CASE("waiting: a reader does not take the file from the writer that waits for it") {
  const TempFile file;
  Openings openings;
  openings.errors[file.path] = EBUSY;
  CHECK(openings.add("writer", file.path).empty());
  openings.errors[file.path] = 0;
  CHECK(openings.add("reader", file.path, true).empty());
  CHECK(openings.opened == 0);
  CHECK(has(openings.trouble(0), "comes first"));
  CHECK(openings.catalogue.open_waiting());
  CHECK(openings.open("writer") == 0);
  CHECK(openings.open("reader", kReadOnly) == 0);
  CHECK(openings.opened == 1);
}

TEST_CASE("waiting: the lock of another server") {
  const TempFile file;
  auto other = std::make_unique<ExportCatalogue>(CatalogueOptions{});
  CHECK(failure_of(*other, {"a", file.path, "", false, false}).empty());
  ExportCatalogue catalogue{{}};
  CHECK(failure_of(catalogue, {"a", file.path, "", false, false}).empty());
  CHECK(failure_of(catalogue, {"b", "memory:1M", "", false, false}).empty());
  CHECK(catalogue.open_named("a", kReadWrite).error() == EBUSY);
  CHECK(has(catalogue.exports().at(0).trouble, "in use by another process"));
  CHECK_FALSE(catalogue.open_waiting());
  other.reset();
  CHECK(catalogue.open_waiting());
  CHECK(catalogue.open_named("a", kReadWrite).has_value());
}

TEST_CASE(
    "waiting: a file that clients have found below the search path is shared, or no hindrance") {
  const TempFile file;
  const fs::path path{file.path};
  for (const auto mode : {kReadWrite, kReadOnly}) {
    auto other = std::make_unique<ExportCatalogue>(CatalogueOptions{});
    CHECK(failure_of(*other, {"a", file.path, "", false, false}).empty());
    ExportCatalogue catalogue{{}};
    CHECK(failure_of(catalogue, {"a", file.path, "", false, false}).empty());
    REQUIRE(catalogue.files().set(path.parent_path().string()).has_value());
    other.reset();
    const auto found = catalogue.files().open("client", path.filename().string(), mode);
    REQUIRE(found.has_value());
    CHECK(catalogue.open_waiting());
    const int error = mode == kReadWrite ? EPERM : 0;
    const auto named = catalogue.open_named("a", kReadWrite);
    CHECK((named ? 0 : named.error()) == error);
    CHECK(catalogue.open_named("a", kReadOnly).has_value());
  }
}

}  // namespace waiting_export_test
