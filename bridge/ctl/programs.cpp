// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/programs.hpp"

#include <glob.h>

#include <algorithm>
#include <filesystem>

namespace rnbd {
namespace {

/// Where the units have them, and the documentation puts them.
constexpr const char* kPlaces[] = {"/run/rnbd/*.control", "/run/rnbd/map/*.control",
                                   "/run/rnbd-bridge/*/control", "/run/rnbd-server/control"};

bool is_there_a_socket(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_socket(path, ignored);
}

std::string name_of_program(const std::filesystem::path& socket) {
  if (socket.extension() == ".control") return socket.stem();
  const std::string folder = socket.parent_path().filename();
  return folder == "rnbd-server" ? "server" : folder;
}

}  // namespace

std::vector<CtlProgram> find_programs(const std::string& root) {
  std::vector<CtlProgram> programs;
  for (const char* place : kPlaces) {
    glob_t found{};
    if (::glob((root + place).c_str(), 0, nullptr, &found) == 0) {
      for (std::size_t i = 0; i < found.gl_pathc; ++i) {
        const std::string path = found.gl_pathv[i];
        if (is_there_a_socket(path)) programs.push_back({name_of_program(path), path});
      }
    }
    ::globfree(&found);
  }
  return programs;
}

std::string places_of_programs(const std::string& root) {
  std::string text;
  for (const char* place : kPlaces) text += (text.empty() ? "" : ", ") + root + place;
  return text;
}

}  // namespace rnbd
