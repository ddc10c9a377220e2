// Command fakegcs serves fake-gcs-server, with its objects in memory and one bucket, on a socket: fakegcs SOCKET BUCKET.
package main

import (
	"log"
	"net"
	"net/http"
	"os"

	"github.com/fsouza/fake-gcs-server/fakestorage"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: fakegcs SOCKET BUCKET")
	}
	s, err := fakestorage.NewServerWithOptions(fakestorage.Options{NoListener: true})
	if err != nil {
		log.Fatal(err)
	}
	s.CreateBucketWithOpts(fakestorage.CreateBucketOpts{Name: os.Args[2]})
	l, err := net.Listen("unix", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.Serve(l, s.HTTPHandler()))
}
