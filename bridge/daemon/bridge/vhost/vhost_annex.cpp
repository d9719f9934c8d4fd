// SPDX-License-Identifier: BSD-3-Clause
// Disks for virtual machines as a face of rnbd-bridge.
#include <utility>

#include "bridge/control/unix_socket.hpp"
#include "bridge/daemon/bridge/annex.hpp"
#include "bridge/vhost/face.hpp"

namespace rnbd {
namespace {

constexpr std::string_view kScheme = "vhost:";

class VhostFace final : public BridgeFace {
 public:
  explicit VhostFace(std::unique_ptr<vhost::Face> face) : face_{std::move(face)} {}
  void open_door() override { face_->open_door(); }
  void stop(std::chrono::steady_clock::time_point until) override { face_->stop(until); }

 private:
  const std::unique_ptr<vhost::Face> face_;
};

tl::expected<std::string, std::string> path_of(std::string_view address) {
  std::string path{address.substr(kScheme.size())};
  if (path.empty()) {
    return tl::unexpected("'" + std::string{address} +
                          "': the path is missing; write e.g. vhost:/run/rnbd/vm1.sock");
  }
  if (const std::string wrong = complaint_about_socket_path(path); !wrong.empty())
    return tl::unexpected("'" + std::string{address} + "': " + wrong);
  return path;
}

tl::expected<std::unique_ptr<BridgeFace>, std::string> open(const std::string& path,
                                                            const FaceSurroundings& surroundings) {
  auto face = vhost::Face::open(
      surroundings.exports, surroundings.meters,
      {.path = path, .log = surroundings.log, .make_call = surroundings.make_call});
  if (!face) return tl::unexpected(std::string{kScheme} + path + ": " + face.error());
  return std::make_unique<VhostFace>(*std::move(face));
}

}  // namespace

extern const BridgeAnnex kVhostAnnex;
const BridgeAnnex kVhostAnnex{
    .scheme = kScheme,
    .help = "vhost:PATH is for one virtual machine (vhost-user-blk), and then for nobody else.",
    .path_of = &path_of,
    .open = &open};

}  // namespace rnbd
