// SPDX-License-Identifier: BSD-3-Clause
// A catalogue over fakes, and files for it.
#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bridge/server/catalogue.hpp"
#include "tests/unit/server/fixture.hpp"

namespace rnbd::test {

namespace fs = std::filesystem;

inline std::string failure_of(ExportCatalogue& catalogue,
                              const ExportSpecification& specification) {
  const auto added = catalogue.add(specification);
  return added ? std::string{} : added.error().text;
}

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// A catalogue over fakes that remembers what it opened.
struct Fakes {
  explicit Fakes(std::shared_ptr<WriterStore> kept = nullptr) : reservations{std::move(kept)} {}
  std::shared_ptr<WriterStore> reservations;
  std::vector<std::pair<std::string, BackendOptions>> opened;
  std::uint64_t size = 4096;
  std::map<std::string, std::uint8_t> ids;  ///< of storages; 1 for others
  ExportCatalogue catalogue{
      {.open = [this](const std::string& storage, const BackendOptions& options)
           -> tl::expected<std::unique_ptr<Backend>, Failure> {
         opened.emplace_back(storage, options);
         auto backend = std::make_unique<FakeBackend>(size);
         backend->info_.read_only = options.read_only;
         backend->info_.uuid = {ids.contains(storage) ? ids.at(storage) : std::uint8_t{1}};
         backend->info_.outlives_server = reservations != nullptr;
         return backend;
       },
       .reservations = reservations}};
};

struct TempFile {
  TempFile() {
    std::string name = (fs::temp_directory_path() / "rnbd-catalogue-XXXXXX").string();
    const int fd = mkstemp(name.data());
    REQUIRE(fd >= 0);
    ::close(fd);
    path = name;
    std::ofstream{path} << std::string(4096, 'x');
  }
  ~TempFile() { fs::remove(path); }
  std::string path;
};

}  // namespace rnbd::test
