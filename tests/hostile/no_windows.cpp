// SPDX-License-Identifier: BSD-3-Clause
// Preloaded into rnbd-server: its RDMA devices say that they have no memory windows. Neither
// soft-RoCE nor anything else that a guest can have is so.
#include <dlfcn.h>
#include <infiniband/verbs.h>

#include <cerrno>

extern "C" int ibv_query_device(ibv_context* context, ibv_device_attr* attributes) {
  static const auto real =
      reinterpret_cast<decltype(&ibv_query_device)>(dlsym(RTLD_NEXT, "ibv_query_device"));
  if (real == nullptr) return ENOSYS;
  const int error = real(context, attributes);
  attributes->device_cap_flags &= ~static_cast<unsigned>(IBV_DEVICE_MEM_WINDOW);
  return error;
}
