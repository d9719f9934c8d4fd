// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/programs.hpp"

#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

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

std::vector<CtlClosedFolder> find_closed_folders(const std::string& root) {
  std::vector<CtlClosedFolder> closed;
  const auto look = [&](const std::filesystem::path& folder, const char* name) {
    std::error_code error;
    if (name == nullptr)
      std::filesystem::directory_iterator{folder, error};
    else
      (void)std::filesystem::status(folder / name, error);
    if (error == std::errc::permission_denied)
      closed.push_back({folder, folder.filename() == "rnbd-server"});
    return error;
  };
  look(root + "/run/rnbd", nullptr);
  look(root + "/run/rnbd/map", nullptr);
  look(root + "/run/rnbd-server", "control");
  if (look(root + "/run/rnbd-bridge", nullptr)) return closed;
  std::error_code error;
  std::filesystem::directory_iterator bridge{root + "/run/rnbd-bridge", error};
  for (; !error && bridge != std::filesystem::directory_iterator{}; bridge.increment(error)) {
    look(bridge->path(), "control");
  }
  return closed;
}

std::string places_of_programs(const std::string& root) {
  std::string text;
  for (const char* place : kPlaces) text += (text.empty() ? "" : ", ") + root + place;
  return text;
}

}  // namespace rnbd
