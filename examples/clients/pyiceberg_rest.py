import sys

from pyiceberg.catalog.rest import RestCatalog

RestCatalog("c", uri=sys.argv[1], token="t").create_namespace("n")
